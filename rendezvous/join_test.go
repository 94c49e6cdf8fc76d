// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func portOf(t *testing.T, l net.Listener) int {
	t.Helper()
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is not a TCP address", l.Addr())
	}
	return tcp.Port
}

// noEnv keeps the environment of the machine that runs the tests out of them.
func noEnv() rendezvous.Option { return env(nil) }

func env(values map[string]string) rendezvous.Option {
	return rendezvous.WithEnv(func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	})
}

func join(t *testing.T, url string, opts ...rendezvous.Option) *rendezvous.Member {
	t.Helper()
	m, err := rendezvous.Join(t.Context(), url, append([]rendezvous.Option{noEnv(), rendezvous.WithTimeout(20 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func set(t *testing.T, s store.Store, key, value string) {
	t.Helper()
	if err := s.Set(t.Context(), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func checkGet(t *testing.T, s store.Store, key, want string) {
	t.Helper()
	if value, err := s.Get(t.Context(), key); err != nil || string(value) != want {
		t.Errorf("get %s: %q, %v; want %q", key, value, err, want)
	}
}

func checkMember(t *testing.T, m *rendezvous.Member, rank cohort.Rank, size int) {
	t.Helper()
	if m.Rank() != rank || m.Size() != size {
		t.Errorf("rank %d of %d, want %d of %d", m.Rank(), m.Size(), rank, size)
	}
}

// RendezvousEnvTest.test_nominal.
func TestRendezvousEnvNominal(t *testing.T) {
	m := join(t, "env://", env(map[string]string{
		"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(testkit.FreePort(t)),
	}))
	checkMember(t, m, 0, 1)
	set(t, m.Store(), "key0", "value0")
	checkGet(t, m.Store(), "key0", "value0")
	if n, err := m.Store().NumKeys(t.Context()); n != 2 || err != nil {
		t.Errorf(`%d keys, %v; want key0 and init/ and nothing else`, n, err)
	}
}

func TestRendezvousEnvPortZero(t *testing.T) {
	m := join(t, "env://?rank=0&world_size=1", env(map[string]string{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}))
	set(t, m.Store(), "key0", "value0")
	checkGet(t, m.Store(), "key0", "value0")
}

// TestRendezvousTCPPortZero: a world of one may leave the port to the system, here and in PyTorch 2.14.
func TestRendezvousTCPPortZero(t *testing.T) {
	m := join(t, "tcp://127.0.0.1:0?rank=0&world_size=1")
	checkMember(t, m, 0, 1)
	set(t, m.Store(), "key0", "value0")
	checkGet(t, m.Store(), "key0", "value0")
}

// RendezvousFileTest.test_nominal.
func TestRendezvousFileNominal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	url := "file:///" + path + "?world_size=2"
	m0, m1 := join(t, url+"&rank=0"), join(t, url+"&rank=1")
	checkMember(t, m0, 0, 2)
	checkMember(t, m1, 1, 2)
	set(t, m0.Store(), "key0", "value0")
	set(t, m1.Store(), "key1", "value1")
	checkGet(t, m1.Store(), "key0", "value0")
	checkGet(t, m0.Store(), "key1", "value1")
	if got := m0.Store().Timeout(); got != 20*time.Second {
		t.Errorf("timeout %v", got)
	}
	for _, m := range []*rendezvous.Member{m0, m1} {
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last one to leave removes the file: %v", err)
	}
}

func TestRendezvousFileBadPath(t *testing.T) {
	start := time.Now()
	_, err := rendezvous.Join(t.Context(), "file:///no/such/folder/x?rank=0&world_size=1", noEnv())
	if err == nil || !strings.Contains(err.Error(), "/no/such/folder/x") || time.Since(start) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// RendezvousTCPTest.test_nominal.
func TestRendezvousTCPNominal(t *testing.T) {
	m := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?world_size=1&rank=0", testkit.FreePort(t)))
	checkMember(t, m, 0, 1)
	set(t, m.Store(), "key0", "value0")
	checkGet(t, m.Store(), "key0", "value0")
}

// RendezvousTCPTest.test_dns_timeout.
func TestRendezvousTCPDNSTimeout(t *testing.T) {
	_, err := rendezvous.Join(t.Context(), fmt.Sprintf("tcp://dnsnotexist.invalid:%d?world_size=2&rank=0", testkit.FreePort(t)),
		noEnv(), rendezvous.WithTimeout(time.Second), rendezvous.WithDialOptions(tcpstore.WithNameRetry()))
	if !errors.Is(err, cohort.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	for _, words := range []string{"client socket has timed out after", "dnsnotexist", "rank 0 must run on the machine"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("the error lacks %q: %v", words, err)
		}
	}
}

// RendezvousTCPTest.test_tcp_store_timeout_set.
func TestRendezvousTCPStoreTimeoutSet(t *testing.T) {
	m := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?world_size=1&rank=0", testkit.FreePort(t)), rendezvous.WithTimeout(time.Second))
	start := time.Now()
	_, err := m.Store().Get(t.Context(), "nonexistant key")
	if !errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took < 900*time.Millisecond || took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// RendezvousTCPTest.test_tcp_store_timeout_doest_break_client.
func TestRendezvousTCPStoreTimeoutDoesntBreakClient(t *testing.T) {
	m := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?world_size=1&rank=0", testkit.FreePort(t)), rendezvous.WithTimeout(time.Second))
	if _, err := m.Store().Get(t.Context(), "the_key"); !errors.Is(err, store.ErrTimeout) {
		t.Fatalf("got %v", err)
	}
	m.Store().SetTimeout(20 * time.Second)
	set(t, m.Store(), "the_key", "x")
	checkGet(t, m.Store(), "the_key", "x")
}

// RendezvousTCPTest.test_tcp_store_url_with_libuv and InitPgWithNonUvStore: every choice is served by one server.
func TestRendezvousTCPStoreURLWithLibuv(t *testing.T) {
	for _, choice := range []string{"&use_libuv=1", "&use_libuv=0", ""} {
		for _, variable := range []map[string]string{nil, {"USE_LIBUV": "0"}, {"USE_LIBUV": "1"}} {
			m := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?world_size=1&rank=0%s", testkit.FreePort(t), choice), env(variable))
			set(t, m.Store(), "k", "v")
			checkGet(t, m.Store(), "k", "v")
			_ = m.Close()
		}
	}
}

// TestRendezvousWorld gathers a world in one process: rank 0 comes last, so the others have to be patient.
func TestRendezvousWorld(t *testing.T) {
	const size = 8
	url := fmt.Sprintf("tcp://127.0.0.1:%d?world_size=%d&rank=", testkit.FreePort(t), size)
	var wg sync.WaitGroup
	members := make([]*rendezvous.Member, size)
	for rank := size - 1; rank >= 0; rank-- {
		wg.Go(func() {
			if rank == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			m, err := rendezvous.Join(t.Context(), url+strconv.Itoa(rank), noEnv(), rendezvous.WithTimeout(20*time.Second))
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
				return
			}
			members[rank] = m
			if err := m.Store().Set(t.Context(), strconv.Itoa(rank), []byte("here")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for rank := range size {
		checkGet(t, members[(rank+1)%size].Store(), strconv.Itoa(rank), "here")
	}
	if n, err := members[3].Store().NumKeys(t.Context()); n != size+1 || err != nil {
		t.Errorf("%d keys, %v; want %d and init/", n, err, size)
	}

	// The host lingers until the others are gone.
	hostGone := make(chan error, 1)
	go func() { hostGone <- members[0].Shutdown(t.Context()) }()
	select {
	case err := <-hostGone:
		t.Fatalf("the host left while others were there: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	checkGet(t, members[1].Store(), "5", "here")
	for _, m := range members[1:] {
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-hostGone:
		if err != nil {
			t.Errorf("the host's shutdown: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the host stays although everybody is gone")
	}
	for _, m := range members {
		if err := m.Close(); err != nil {
			t.Errorf("close after shutdown: %v", err)
		}
	}
	if err := members[1].Store().Set(t.Context(), "k", nil); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after shutdown: %v", err)
	}
}

func TestRendezvousShutdownEndsWithItsContext(t *testing.T) {
	url := fmt.Sprintf("tcp://127.0.0.1:%d?world_size=2&rank=", testkit.FreePort(t))
	client := make(chan *rendezvous.Member, 1)
	go func() {
		m, err := rendezvous.Join(t.Context(), url+"1", noEnv())
		if err != nil {
			t.Error(err)
		}
		client <- m
	}()
	host := join(t, url+"0")
	other := <-client
	defer func() { _ = other.Close() }()

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := host.Shutdown(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connections were still open") {
		t.Errorf("shutdown: %v", err)
	}
	if err := other.Store().Set(t.Context(), "k", nil); err == nil {
		t.Error("the store is gone, but a set succeeds")
	}
}

func TestRendezvousCloseEndsAShutdown(t *testing.T) {
	url := fmt.Sprintf("tcp://127.0.0.1:%d?world_size=2&rank=", testkit.FreePort(t))
	client := make(chan *rendezvous.Member, 1)
	go func() {
		m, err := rendezvous.Join(t.Context(), url+"1", noEnv())
		if err != nil {
			t.Error(err)
		}
		client <- m
	}()
	host := join(t, url+"0")
	other := <-client
	defer func() { _ = other.Close() }()
	done := make(chan error, 1)
	go func() { done <- host.Shutdown(context.Background()) }()
	select {
	case err := <-done:
		t.Fatalf("did not linger: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = host.Close()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("Shutdown goes on after Close")
	}
}

func TestRendezvousAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := portOf(t, l)
	_, err = rendezvous.Join(t.Context(), fmt.Sprintf("tcp://127.0.0.1:%d?rank=0&world_size=1", port), noEnv())
	if !errors.Is(err, cohort.AlreadyExists) {
		t.Fatalf("got %v", err)
	}
	for _, words := range []string{
		"The server socket has failed to listen on any local network address", "Address already in use",
		fmt.Sprintf("port %d", port), "choose another port",
	} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("the error lacks %q: %v", words, err)
		}
	}
	if _, statErr := os.Stat("/proc/self/fd"); statErr == nil &&
		!strings.Contains(err.Error(), fmt.Sprintf("held by pid %d", os.Getpid())) {
		t.Errorf("the holder is not named: %v", err)
	}
}

// Two masters of one process share a server: PyTorch's multi-tenancy.
func TestRendezvousSharedServers(t *testing.T) {
	url := fmt.Sprintf("tcp://127.0.0.1:%d?world_size=1&rank=0", testkit.FreePort(t))
	var shared tcpstore.Shared
	m0 := join(t, url, rendezvous.WithSharedServers(&shared))
	m1 := join(t, url, rendezvous.WithSharedServers(&shared))
	set(t, m0.Store(), "k", "v")
	checkGet(t, m1.Store(), "k", "v")
	if err := m0.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	checkGet(t, m1.Store(), "k", "v")
	if _, err := rendezvous.Join(t.Context(), url, noEnv()); !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("a join that does not share: %v", err)
	}
}

// A launcher hosts the store: all ranks are clients, also rank 0, and none waits.
func TestRendezvousAgentStore(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	variables := map[string]string{
		"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(server.Port()),
		"TORCHELASTIC_USE_AGENT_STORE": "True",
	}
	m := join(t, "env://", env(variables))
	set(t, m.Store(), "k", "v")

	// PyTorch 1.13 puts the attempt in front of all keys; an option or the dialect decides.
	variables["TORCHELASTIC_RESTART_COUNT"] = "3"
	variables["RANK"] = "1"
	old := join(t, "env://", env(variables), rendezvous.WithAttemptPrefix(rendezvous.AttemptPrefixAlways))
	set(t, old.Store(), "k", "old")
	legacy := join(t, "env://", env(variables), rendezvous.WithDialOptions(tcpstore.WithDialect(tcpstore.DialectLegacy)))
	checkGet(t, legacy.Store(), "k", "old")
	checkGet(t, m.Store(), "/worker/attempt_3/k", "old")
	checkGet(t, m.Store(), "k", "v")
	never := join(t, "env://", env(variables), rendezvous.WithAttemptPrefix(rendezvous.AttemptPrefixNever),
		rendezvous.WithDialOptions(tcpstore.WithDialect(tcpstore.DialectLegacy)))
	checkGet(t, never.Store(), "k", "v")

	delete(variables, "TORCHELASTIC_RESTART_COUNT")
	_, err = rendezvous.Join(t.Context(), "env://", env(variables), rendezvous.WithAttemptPrefix(rendezvous.AttemptPrefixAlways))
	if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "TORCHELASTIC_RESTART_COUNT expected, but not set") {
		t.Errorf("got %v", err)
	}
}

// A launcher hosts a store, and the ranks meet at another address: rank 0 hosts that one, unless another process does already.
func TestRendezvousElsewhere(t *testing.T) {
	variables := env(map[string]string{
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(testkit.FreePort(t)),
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
	})
	port := testkit.FreePort(t)
	joined := make(chan *rendezvous.Member, 1)
	go func() { joined <- join(t, fmt.Sprintf("tcp://127.0.0.1:%d?rank=1&world_size=2", port), variables) }()
	m0 := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?rank=0&world_size=2", port), variables)
	m1 := <-joined
	set(t, m0.Store(), "k", "v")
	checkGet(t, m1.Store(), "k", "v")

	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	m := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?rank=0&world_size=2", server.Port()), variables)
	set(t, m.Store(), "k", "served")
}

func TestRendezvousOpenWorld(t *testing.T) {
	url := fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t))
	m := join(t, url, rendezvous.WithRank(0), rendezvous.WithOpenWorld())
	checkMember(t, m, 0, rendezvous.NoWorldSize)
	if n, err := m.Store().NumKeys(t.Context()); n != 0 || err != nil {
		t.Errorf("an open world counts no ranks, but there are %d keys, %v", n, err)
	}
}

func TestRendezvousRegisteredScheme(t *testing.T) {
	registry := rendezvous.NewRegistry()
	memory := store.NewMemory()
	defer func() { _ = memory.Close() }()
	if err := registry.Register("memory", rendezvous.Shared(memory)); err != nil {
		t.Fatal(err)
	}
	with := rendezvous.WithRegistry(registry)
	m0 := join(t, "memory://?rank=0&world_size=2", with)
	m1 := join(t, "memory://", with, rendezvous.WithRank(1), rendezvous.WithWorldSize(2))
	checkMember(t, m1, 1, 2)
	set(t, m0.Store(), "k", "v")
	if err := m0.Close(); err != nil {
		t.Error(err)
	}
	checkGet(t, m1.Store(), "k", "v")
	for url, words := range map[string]string{
		"memory://?world_size=2": "rank parameter missing", "memory://?rank=0": "world size parameter missing",
		"memory://?rank=2&world_size=2": "rank 2 is not in a world of 2",
	} {
		if _, err := rendezvous.Join(t.Context(), url, with, noEnv()); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if err := registry.Register("nothing", func(context.Context, rendezvous.Call) (*rendezvous.Member, error) {
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := rendezvous.Join(t.Context(), "nothing://", with, noEnv()); !errors.Is(err, cohort.Internal) {
		t.Errorf("a handler that returns nothing: %v", err)
	}
}
