// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/store"
)

// armedConn calls during while a far deadline is being set: after the decision to set it, before it is set.
type armedConn struct {
	net.Conn
	read, write func()
}

func far(t time.Time) bool { return t.IsZero() || time.Until(t) > 10*unwatchedTime }

func (c *armedConn) SetReadDeadline(t time.Time) error {
	if far(t) && c.read != nil {
		c.read()
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *armedConn) SetWriteDeadline(t time.Time) error {
	if far(t) && c.write != nil {
		c.write()
	}
	return c.Conn.SetWriteDeadline(t)
}

// TestNativeEndDuringArming: a context that ends while the deadline of its own read or write is being set is not
// overlooked. The call would wait for ever.
func TestNativeEndDuringArming(t *testing.T) {
	for _, writing := range []bool{false, true} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				var conn *armedConn
				network := &faultnet.Network{}
				l, err := network.Listen("silent:1")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				accepted := make(chan net.Conn, 1)
				go func() { // greets as cohort's server and says nothing more
					server, closed := l.Accept()
					if closed != nil {
						return
					}
					buf := make([]byte, 4096)
					n, _ := server.Read(buf)
					ping := buf[len(wire.AppendValidate(nil)):n]
					_, _ = server.Write(append(append([]byte{}, ping[1:5]...), wire.Ready, wire.NotReady))
					accepted <- server
				}()
				c, err := Dial(t.Context(), "silent:1", WithTimeout(timeout),
					WithDialer(func(ctx context.Context, n, addr string) (net.Conn, error) {
						raw, refused := network.Dial(ctx, n, addr)
						conn = &armedConn{Conn: raw}
						return conn, refused
					}))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				defer func() { _ = (<-accepted).Close() }()
				ctx, cancel := context.WithCancel(t.Context())
				end := func() {
					cancel()
					time.Sleep(time.Microsecond) // until the watcher of the context has done its work
				}
				value := []byte("v")
				if writing {
					conn.write, value = end, make([]byte, 1<<20)
				} else {
					conn.read = end
				}
				start := time.Now()
				err = c.Set(ctx, "k", value)
				if took := time.Since(start); !errors.Is(err, context.Canceled) || took > 10*unwatchedTime {
					t.Errorf("writing %v, timeout %v: ended after %v with %v", writing, timeout, took, err)
				}
			})
		}
	}
}

// TestTimeoutOfAFrozenServer: the client's timeout bounds every operation, and its error does not blame missing keys.
func TestTimeoutOfAFrozenServer(t *testing.T) {
	const allowed = 2 * time.Second
	for _, kind := range []fakeKind{fakeNative, fakeV1, fakeLegacy} {
		onFake(t, kind, func(int, net.Conn, *wire.Request) bool { return true }, func(t *testing.T, c *Client, f *fakeStore) {
			t.Helper()
			f.mute.Store(true)
			for name, do := range map[string]func(context.Context) error{
				"set":    func(ctx context.Context) error { return c.Set(ctx, "k", []byte("v")) },
				"add":    func(ctx context.Context) error { _, err := c.Add(ctx, "k", 1); return err },
				"check":  func(ctx context.Context) error { _, err := c.Check(ctx, "k"); return err },
				"delete": func(ctx context.Context) error { _, err := c.Delete(ctx, "k"); return err },
				"get":    func(ctx context.Context) error { _, err := c.Get(ctx, "k"); return err },
				"wait":   func(ctx context.Context) error { return c.Wait(ctx, "k") },
			} {
				start := time.Now()
				err := do(t.Context())
				if took := time.Since(start); took < allowed || took > allowed+finalReplyTime || !errors.Is(err, store.ErrTimeout) {
					t.Errorf("%v: %s ended after %v with %v", c.Dialect(), name, took, err)
				} else if strings.Contains(err.Error(), "no client has set") || !strings.Contains(err.Error(), "not answered") {
					t.Errorf("%v: %s gives a false reason: %v", c.Dialect(), name, err)
				}
			}
		}, WithTimeout(allowed))
	}
}

// TestTimeoutSaysThatNoClientSetTheKey: with a server that answers, that is the reason.
func TestTimeoutSaysThatNoClientSetTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &faultnet.Network{}
		l, err := network.Listen("store:1")
		if err != nil {
			t.Fatal(err)
		}
		s, err := Serve(l)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, d := range []Dialect{DialectNative, DialectV, DialectLegacy} {
			c, err := Dial(t.Context(), "store:1", WithDialer(network.Dial), WithDialect(d), WithTimeout(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err = c.Get(t.Context(), "never")
			if took := time.Since(start); took != time.Second || !errors.Is(err, store.ErrTimeout) ||
				!strings.Contains(err.Error(), "no client has set") {
				t.Errorf("%v: after %v: %v", d, took, err)
			}
			_ = c.Close()
		}
	})
}

// TestQueuePushIsNotMisrouted: a question for the server's features that fails is an error. It must not send an item to
// the queue of the fallback, where no other client looks.
func TestQueuePushIsNotMisrouted(t *testing.T) {
	on := func(n int, conn net.Conn, r *wire.Request) bool {
		if n > 1 {
			return false // a network that lets nothing new through
		}
		switch r.Op {
		case wire.NumKeys:
			_, _ = conn.Write(intReply(0))
		case wire.CompareSet:
			_, _ = conn.Write(bytesReply(string(r.Value)))
		default:
			return false
		}
		return true
	}
	onFake(t, fakeV1, on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		for _, s := range []store.Store{c, store.Prefix("p", c)} {
			if err := store.QueuePush(t.Context(), s, "q", []byte("item")); err == nil {
				t.Errorf("%T: pushed an item without a known destination", s)
			}
			if _, err := store.QueueLen(t.Context(), s, "q"); err == nil {
				t.Errorf("%T: the length of a queue that was not asked for", s)
			}
		}
	})
}

// TestOneCutDoesNotDecideAboutAFeature: a connection that is cut during the question says nothing about the server.
func TestOneCutDoesNotDecideAboutAFeature(t *testing.T) {
	probes := 0
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		switch r.Op {
		case wire.NumKeys:
			_, _ = conn.Write(intReply(0))
		case wire.QueueLen:
			if probes++; probes == 1 {
				return false
			}
			_, _ = conn.Write(intReply(3))
		default:
			return false
		}
		return true
	}
	onFake(t, fakeV1, on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		if n, err := store.QueueLen(t.Context(), c, "q"); n != 3 || err != nil {
			t.Errorf("%d, %v: the server has queues", n, err)
		}
	})
}

// TestDialerThatEndsItsGoroutine: a user's dialer that never returns takes no connection's place with it.
func TestDialerThatEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFake(t, fakeV1, func(_ int, conn net.Conn, _ *wire.Request) bool {
			_, _ = conn.Write(intReply(1))
			return false // each connection is good for one answer
		})
		defer stop()
		exit := false
		c, err := Dial(t.Context(), "fake:1", WithDialer(func(ctx context.Context, n, addr string) (net.Conn, error) {
			if exit {
				runtime.Goexit()
			}
			return f.network.Dial(ctx, n, addr)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		add := func() { _, _ = c.Add(t.Context(), "n", 1) }
		for range 2 * shortConns {
			add() // uses a connection up
			add() // finds it lost
			exit = true
			done := make(chan struct{})
			go func() {
				defer close(done)
				add()
			}()
			<-done
			exit = false
		}
		if _, err := c.Add(t.Context(), "n", 1); err != nil {
			t.Errorf("no place is left: %v", err)
		}
	})
}
