// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/store"
)

func TestDialFindsEveryKindOfServer(t *testing.T) {
	for _, test := range []struct {
		name  string
		kind  fakeKind
		want  Dialect
		conns int
	}{
		{"1.13", fakeLegacy, DialectLegacy, 4},
		{"2.4", fakeV0, DialectV, 3},
		{"2.6", fakeV1, DialectV, 1},
		{"cohort", fakeNative, DialectNative, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, stop := newFake(t, test.kind, func(_ int, conn net.Conn, r *wire.Request) bool {
					if r.Op == wire.NumKeys {
						answer := intReply(3)
						if test.kind == fakeNative {
							answer = frameReply(r.ID, 0, answer)
						}
						_, _ = conn.Write(answer)
					}
					return true
				})
				defer stop()
				c, err := Dial(t.Context(), "fake:1", WithDialer(f.network.Dial))
				if err != nil {
					t.Fatal(err)
				}
				if conns, _ := f.counts(); c.Dialect() != test.want || conns != test.conns {
					t.Errorf("dialect %v after %d connections", c.Dialect(), conns)
				}
				if n, err := c.NumKeys(t.Context()); n != 3 || err != nil {
					t.Errorf("first operation: %d, %v", n, err)
				}
				if test.kind == fakeV0 && (store.Supports(c, store.FeatureQueue) || !store.Supports(c, store.FeatureAppend)) {
					t.Error("a 2.4 server has append and no queues")
				}
				_ = c.Close()
			})
		})
	}
}

// TestGreetingIsHarmlessToOldServers: what we send first must reach a libuv server whole, and must not make a 1.13
// server allocate.
func TestGreetingIsHarmlessToOldServers(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			f, stop := newFake(t, fakeLegacy, func(_ int, conn net.Conn, _ *wire.Request) bool {
				_, _ = conn.Write(intReply(0))
				return true
			})
			defer stop()
			c, err := Dial(t.Context(), "fake:1", WithDialer(f.network.Dial))
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			for i, first := range f.first[:2] {
				if len(first) < 9 || wire.Detect(first) != wire.V {
					t.Fatalf("greeting %d is %x", i, first)
				}
				// As 1.13 reads it: SET, then a key length of eight bytes. More than the address space, so that it
				// fails at once: 2^63 is refused by std::vector, 2^57 by any kernel.
				var keyLength uint64
				for k := 8; k >= 1; k-- {
					keyLength = keyLength<<8 | uint64(first[k])
				}
				if least := []uint64{1 << 63, 1 << 58}[i]; keyLength < least {
					t.Fatalf("greeting %d announces a key of %d bytes to 1.13", i, keyLength)
				}
			}
		})
	}
}

func TestDialRetriesUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		failures := []error{
			&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, &net.OpError{Op: "dial", Err: syscall.ECONNRESET},
			&net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: "master", IsTemporary: true}},
		}
		dial := func(context.Context, string, string) (net.Conn, error) {
			attempts++
			return nil, failures[attempts%len(failures)]
		}
		start := time.Now()
		_, err := Dial(t.Context(), "master:29500", WithDialer(dial), WithTimeout(30*time.Second))
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("gave up after %v", took)
		}
		if attempts < 30 {
			t.Errorf("%d attempts", attempts)
		}
		if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "The client socket has timed out after 30000ms while trying to connect to (master, 29500).") ||
			!strings.Contains(err.Error(), "MASTER_ADDR") {
			t.Errorf("error: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // wins over the option
		defer cancel()
		start = time.Now()
		_, err = Dial(ctx, "master:29500", WithDialer(dial), WithTimeout(time.Hour))
		if took := time.Since(start); took != time.Second || !errors.Is(err, store.ErrTimeout) {
			t.Errorf("ended after %v with %v", took, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err = Dial(ctx, "master:29500", WithDialer(dial)); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrTimeout) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestDialWaitsForALateServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFake(t, fakeV1, func(int, net.Conn, *wire.Request) bool { return true })
		defer stop()
		start := time.Now()
		c, err := Dial(t.Context(), "fake:1", WithDialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if time.Since(start) < 5*time.Second {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return f.network.Dial(ctx, network, addr)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 5*time.Second || took > 7*time.Second {
			t.Errorf("connected after %v", took)
		}
		_ = c.Close()
	})
}

func TestDialGivesUpOnStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network faultnet.Network
		l, _ := network.Listen("web:80")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n")
				_ = conn.Close()
			}
		}()
		start := time.Now()
		_, err := Dial(t.Context(), "web:80", WithDialer(network.Dial))
		// It may have to ask again, since the other end can be closed before it has read the question.
		if !errors.Is(err, cohort.Protocol) || !strings.Contains(err.Error(), "HTTP/") || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		_ = l.Close()
		<-done
	})
}

func TestDialRefusesBadAddresses(t *testing.T) {
	for _, addr := range []string{"", "localhost", "localhost:", "a:b:c", "localhost:99999", "localhost:80x"} {
		start := time.Now()
		_, err := Dial(t.Context(), addr, WithTimeout(time.Minute))
		if !errors.Is(err, cohort.InvalidArgument) || time.Since(start) > 10*time.Second {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func TestDialIsBoundedWhenTheServerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network faultnet.Network
		l, _ := network.Listen("mute:1")
		start := time.Now()
		_, err := Dial(t.Context(), "mute:1", WithDialer(network.Dial), WithTimeout(25*time.Second))
		if took := time.Since(start); took != 25*time.Second || !errors.Is(err, store.ErrTimeout) {
			t.Errorf("after %v: %v", took, err)
		}
		_ = l.Close()
	})
}

func TestDialRefusesNativeOnPyTorch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFake(t, fakeV1, func(int, net.Conn, *wire.Request) bool { return true })
		defer stop()
		_, err := Dial(t.Context(), "fake:1", WithDialer(f.network.Dial), WithDialect(DialectNative))
		if !errors.Is(err, store.ErrNotSupported) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestDialLogsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		_, _ = Dial(t.Context(), "nohost:1", WithDialer((&faultnet.Network{}).Dial), WithTimeout(time.Second), WithLogger(log))
		if !strings.Contains(text.String(), "addr=nohost:1 attempt=1") {
			t.Errorf("log: %s", text.String())
		}
	})
}
