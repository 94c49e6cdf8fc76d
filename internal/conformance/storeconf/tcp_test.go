// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeconf

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/freeport"
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
	// Who does not join a world waits for nobody.
	_ = dial(t, listen(t))
}

func freeURL(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("tcp://127.0.0.1:%d", freeport.Get(t))
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

func wantPlace(t *testing.T, m *rendezvous.Member, rank dist.Rank, size int) {
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
