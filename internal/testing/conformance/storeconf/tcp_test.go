// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeconf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/storetest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t *testing.T) *tcpstore.Server {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

func dial(t *testing.T, server *tcpstore.Server, opts ...tcpstore.ClientOption) *tcpstore.Client {
	t.Helper()
	client, err := tcpstore.Dial(t.Context(), server.Addr().String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// master is PyTorch's create_tcp_store: a server and a client that has joined a world of one.
func master(t *testing.T, opts ...tcpstore.ClientOption) *tcpstore.Client {
	t.Helper()
	client := dial(t, listen(t), opts...)
	if _, err := client.JoinWorker(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}

func runOverTCP(t *testing.T, dialect tcpstore.Dialect, wrap func(store.Store) store.Store) {
	t.Helper()
	t.Parallel()
	opts := []storetest.Option{
		storetest.WithExtraKeys(1), storetest.WithEmptyNotANumber(),
		storetest.WithHandles(func(t *testing.T, n int) []store.Store {
			t.Helper()
			server := listen(t)
			all := make([]store.Store, n)
			for i := range all {
				client := dial(t, server, tcpstore.WithDialect(dialect))
				if i == 0 {
					if _, err := client.JoinWorker(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				all[i] = wrap(client)
			}
			return all
		}),
	}
	storetest.Run(t, func(t *testing.T) store.Store { t.Helper(); return wrap(master(t, tcpstore.WithDialect(dialect))) }, opts...)
}

func same(s store.Store) store.Store { return s }

func prefixed(s store.Store) store.Store { return store.Prefix("test_prefix", s) }

func TestTCPStore(t *testing.T)             { runOverTCP(t, tcpstore.DialectV, same) }
func TestTCPStoreLegacy(t *testing.T)       { runOverTCP(t, tcpstore.DialectLegacy, same) }
func TestTCPStoreNative(t *testing.T)       { runOverTCP(t, tcpstore.DialectNative, same) }
func TestPrefixTCPStore(t *testing.T)       { runOverTCP(t, tcpstore.DialectV, prefixed) }
func TestPrefixTCPStoreNative(t *testing.T) { runOverTCP(t, tcpstore.DialectNative, prefixed) }

func TestTCPStoreAddressInUse(t *testing.T) {
	first := listen(t)
	second, err := tcpstore.Listen(first.Addr().String())
	if err == nil {
		_ = second.Close()
		t.Fatal("two servers share a port")
	}
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), strconv.Itoa(first.Port())) ||
		!strings.Contains(err.Error(), "The server socket has failed to listen on any local network address") {
		t.Errorf("the error does not say what is in use: %v", err)
	}
}

func TestTCPStoreMultitenancy(t *testing.T) {
	var shared tcpstore.Shared
	first, err := shared.Acquire("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := shared.Acquire(first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if first.Server != second.Server {
		t.Error("the second master got a server of its own")
	}
	_ = first.Close()
	if err := dial(t, second.Server).Set(t.Context(), "k", nil); err != nil {
		t.Errorf("the server ended with its first user: %v", err)
	}
}

// TestTCPStoreText: the text of a server and of a client says where they are. PyTorch's TCPStore is both in one.
func TestTCPStoreText(t *testing.T) {
	server := listen(t)
	addr := regexp.QuoteMeta(server.Addr().String())
	for _, dialect := range []tcpstore.Dialect{tcpstore.DialectV, tcpstore.DialectNative} {
		want := regexp.MustCompile(`^store at ` + addr + ` \(` + dialect.String() + ` dialect\)$`)
		if text := fmt.Sprint(dial(t, server, tcpstore.WithDialect(dialect))); !want.MatchString(text) {
			t.Errorf("a client prints %q, want %v", text, want)
		}
	}
	if text, want := fmt.Sprint(server), "tcpstore server at "+server.Addr().String(); text != want {
		t.Errorf("the server prints %q, want %q", text, want)
	}
}

func TestTCPStoreWorldSizeZero(t *testing.T) {
	const words = "TCPStore world size cannot be 0"
	patience := rendezvous.WithTimeout(10 * time.Second) // a world of none that is not refused would be waited for
	for _, rank := range []string{"0", "1"} {
		wantRefused(t, freeURL(t)+"?world_size=0&rank="+rank, words, patience)
		wantRefused(t, "env://", words, patience, env(map[string]string{
			"WORLD_SIZE": "0", "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": freePort(t),
		}))
	}
}

// TestTCPStoreClientConnect: a client greets a server of PyTorch's with VALIDATE and a PING, and is connected when the
// number in the PING has come back. PyTorch's number is the process id. Ours is random, within what PyTorch 1.13 bears,
// so that an echo of anything else is told from an answer.
func TestTCPStoreClientConnect(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, answer := range []struct {
		add uint32
		ok  bool
	}{{0, true}, {1, false}} {
		served := make(chan error, 1)
		go func() { served <- answerGreeting(listener, answer.add) }()
		client, err := tcpstore.Dial(t.Context(), listener.Addr().String(), tcpstore.WithDialect(tcpstore.DialectV),
			tcpstore.WithTimeout(20*time.Second))
		if err == nil {
			_ = client.Close()
		}
		if (err == nil) != answer.ok {
			t.Errorf("the server answered the number plus %d: %v", answer.add, err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// answerGreeting reads the greeting of one client and answers its number plus add.
func answerGreeting(listener net.Listener, add uint32) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	var greeting [10]byte
	if _, err = io.ReadFull(conn, greeting[:]); err != nil {
		return err
	}
	if want := []byte{0, 0xce, 0xf7, 0x85, 0x3c, 13}; !bytes.HasPrefix(greeting[:], want) {
		return fmt.Errorf("the client sent % x, want % x and a number", greeting, want)
	}
	number := binary.LittleEndian.Uint32(greeting[6:])
	_, err = conn.Write(binary.LittleEndian.AppendUint32(nil, number+add))
	return err
}

func TestTCPStoreTakeOverListenSocket(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	server, err := tcpstore.ListenFD(fd, name.(*syscall.SockaddrInet4).Port) //nolint:errcheck // AF_INET above
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client := dial(t, server)
	if err := client.Set(t.Context(), "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	wantGet(t, client, "key", "value")
}

func wantGet(t *testing.T, s store.Store, key, want string) {
	t.Helper()
	if got, err := s.Get(t.Context(), key); err != nil || string(got) != want {
		t.Fatalf("get %q = %q, %v; want %q", key, got, err, want)
	}
}

func TestTCPStoreMultiWorkerFixedWorldSize(t *testing.T)    { multiWorker(t, 5, true) }
func TestTCPStoreMultiWorkerNonFixedWorldSize(t *testing.T) { multiWorker(t, 1, false) }

func multiWorker(t *testing.T, clients int, join bool) {
	t.Helper()
	server := listen(t)
	first := dial(t, server)
	if err := first.Set(t.Context(), "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	for i := range clients {
		c := dial(t, server, tcpstore.WithTimeout(10*time.Second))
		if join {
			if n, err := c.JoinWorker(t.Context()); n != int64(i+1) || err != nil {
				t.Fatalf("join: %d, %v", n, err)
			}
		}
		wantGet(t, c, "key", "value")
		key, value := fmt.Sprint("new_key", i), fmt.Sprint("new_value", i)
		if err := c.Set(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
		next := fmt.Sprint("next_value", i)
		if got, err := c.CompareAndSet(t.Context(), key, []byte(value), []byte(next)); string(got) != next || err != nil {
			t.Fatalf("compare-and-set: %q, %v", got, err)
		}
	}
}

func TestTCPStoreTimeoutOnMissingClients(t *testing.T) {
	begin := time.Now()
	m, err := rendezvous.Join(t.Context(), freeURL(t)+"?rank=0&world_size=2", rendezvous.WithTimeout(time.Second))
	if err == nil {
		_ = m.Close()
		t.Fatal("a world of two gathered with one")
	}
	words := regexp.MustCompile(`Timed out after \d+ seconds waiting for clients. \d+/\d+ clients joined.`)
	if !errors.Is(err, store.ErrTimeout) || !words.MatchString(err.Error()) || time.Since(begin) > 20*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	// A client that does not join a world waits for no other.
	_ = dial(t, listen(t))
}

func freeURL(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t))
}

func join(t *testing.T, url string, opts ...rendezvous.Option) *rendezvous.Member {
	t.Helper()
	m, err := rendezvous.Join(t.Context(), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func wantPlace(t *testing.T, m *rendezvous.Member, rank cohort.Rank, size int) {
	t.Helper()
	if m.Rank() != rank || m.Size() != size {
		t.Errorf("rank %d of %d, want %d of %d", m.Rank(), m.Size(), rank, size)
	}
}

func TestPrefixUnderlyingStore(t *testing.T) {
	file, err := filestore.Open(t.Context(), filepath.Join(t.TempDir(), "store"), filestore.WithWorldSize(1))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, s := range []store.Store{master(t), store.NewMemory(), file} {
		if got := store.Prefix("prefix", s).Underlying(); got != s {
			t.Errorf("%T: %v", s, got)
		}
	}
	// PyTorch refuses to make a view of no store; here the view is made and refuses everything.
	if err := store.Prefix("prefix", nil).Set(t.Context(), "k", nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a view of no store: %v", err)
	}
}

func TestPrefixTCPStoreUnderlyingNonPrefixStore(t *testing.T) {
	tcp := master(t)
	once := store.Prefix("test_prefix", tcp)
	thrice := store.Prefix("test_prefix", store.Prefix("test_prefix", once))
	for _, s := range []store.Store{once, thrice} {
		if got := store.UnderlyingNonPrefix(s); got != store.Store(tcp) {
			t.Errorf("got %v", got)
		}
	}
}

// waitAndSet is PyTorch's TestMultiThreadedWait: one thread waits for what the other sets.
func waitAndSet(t *testing.T, waiter, setter store.Store) {
	t.Helper()
	waiter.SetTimeout(20 * time.Second)
	done := make(chan error, 1)
	go func() {
		err := waiter.Wait(context.Background(), "key1")
		if err == nil {
			var v []byte
			if v, err = waiter.Get(context.Background(), "key1"); string(v) != "value1" {
				err = errors.Join(err, fmt.Errorf("got %q", v))
			}
		}
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	if err := setter.Set(t.Context(), "key1", []byte("value1")); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMultiThreadedWaitHashStore(t *testing.T) {
	m := store.NewMemory()
	waitAndSet(t, m, m)
}

func TestMultiThreadedWaitFileStore(t *testing.T) {
	s, err := filestore.Open(t.Context(), filepath.Join(t.TempDir(), "store"), filestore.WithWorldSize(1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	waitAndSet(t, s, s)
	waitAndSet(t, store.Prefix("pre", s), store.Prefix("pre", s))
}

func TestMultiThreadedWaitTCPStore(t *testing.T) {
	for _, dialect := range []tcpstore.Dialect{tcpstore.DialectV, tcpstore.DialectLegacy, tcpstore.DialectNative} {
		t.Run(dialect.String(), func(t *testing.T) {
			server := listen(t)
			a, b := dial(t, server, tcpstore.WithDialect(dialect)), dial(t, server, tcpstore.WithDialect(dialect))
			waitAndSet(t, a, b)
			waitAndSet(t, store.Prefix("pre", a), store.Prefix("pre", b))
		})
	}
}
