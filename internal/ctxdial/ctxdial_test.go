// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ctxdial_test

import (
	"context"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/ctxdial"
)

// lagging is a context whose deadline passes some time before it ends, as any context's does by a little.
type lagging struct{ context.Context } //nolint:containedctx // it is that context

func (lagging) Deadline() (time.Time, bool) { return time.Now().Add(10 * time.Millisecond), true }

func TestDialEndsWithItsContext(t *testing.T) {
	full := fullListener(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	conn, err := ctxdial.Dial(lagging{ctx}, &net.Dialer{}, "tcp", full)
	if err == nil {
		_ = conn.Close()
		t.Fatal("connected to a listener whose backlog is full")
	}
	if ctx.Err() == nil {
		t.Fatalf("the dial ended before its context: %v", err)
	}
}

// fullListener returns the address of a listener at which a dial waits: its backlog is full and nobody accepts.
func fullListener(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err = syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port)) //nolint:errcheck // it was bound so
	for range 64 {
		conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Skip("this platform lets connections wait beyond the backlog")
	return ""
}
