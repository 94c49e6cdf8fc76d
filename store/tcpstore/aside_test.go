// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestFunctionsGivenToAStore: a hook, a dialer or a handler of logs that panics or ends its goroutine takes neither the process, nor a
// server, nor a client with it.
func TestFunctionsGivenToAStore(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		hook := tcpstore.WithHook(func(observe.Event) { end() })
		log := tcpstore.WithLogger(testkit.BadLogger(end))
		for _, dialect := range dialects {
			t.Run(fmt.Sprintf("%s, %s", how, dialect), func(t *testing.T) {
				t.Parallel()
				for _, loops := range []int{1, 2} {
					s := serve(t, hook, log, tcpstore.WithLoops(loops), tcpstore.WithLimits(tcpstore.Limits{Key: 100}))
					c := connect(t, s.Addr().String(), hook, log, tcpstore.WithDialect(dialect))
					useStore(t, c)
					stranger, err := net.Dial("tcp", s.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					_, _ = stranger.Write([]byte("\xff\xff\xffthis is not a request")) // which the server logs
					_ = stranger.SetReadDeadline(time.Now().Add(30 * time.Second))
					if _, err = stranger.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("the stranger: %v", err)
					}
					_ = stranger.Close()
					useStore(t, c)
				}
			})
			t.Run(fmt.Sprintf("%s in the dialer, %s", how, dialect), func(t *testing.T) {
				t.Parallel()
				s := serve(t)
				var bad atomic.Bool
				var log testkit.Log
				var last atomic.Pointer[net.Conn]
				dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
					if bad.Load() {
						end()
					}
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					last.Store(&conn)
					return conn, err
				}
				c := connect(t, s.Addr().String(), tcpstore.WithDialer(dial), tcpstore.WithLogger(log.Logger(slog.LevelInfo)),
					tcpstore.WithDialect(dialect))
				bad.Store(true)
				_ = (*last.Load()).Close() // it has to dial again
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				for range 2 { // the first one may only find out that it has no connection
					if err := c.Set(ctx, "k", nil); err == nil || cohort.CodeOf(err) == cohort.Unknown {
						t.Errorf("with a dialer that does not return: %v", err)
					}
				}
				if told := strings.Contains(log.String(), "a bug"); told != (how == "panic") {
					t.Errorf("log: %s", &log)
				}
				bad.Store(false)
				useStore(t, c)
			})
		}
	}
}

func useStore(t *testing.T, s store.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Set(ctx, "key", []byte("value")); err != nil {
		t.Error(err)
	}
	if v, err := s.Get(ctx, "key"); err != nil || string(v) != "value" {
		t.Errorf("%q, %v", v, err)
	}
	if _, err := s.Add(ctx, "n", 1); err != nil {
		t.Error(err)
	}
}
