// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ctxdial

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// lagging is a context whose deadline passes some time before it ends, as any context's does by a little.
type lagging struct{ context.Context } //nolint:containedctx // it is that context

func (lagging) Deadline() (time.Time, bool) { return time.Now().Add(10 * time.Millisecond), true }

func TestDialEndsWithItsContext(t *testing.T) {
	full := fullListener(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	conn, err := Dial(lagging{ctx}, &net.Dialer{}, "tcp", full)
	if err == nil {
		_ = conn.Close()
		t.Fatal("connected to a listener whose backlog is full")
	}
	if ctx.Err() == nil {
		t.Fatalf("the dial ended before its context: %v", err)
	}
}

// TestSilentAddress: of several addresses, one that does not answer and one that refuses do not keep a dial from the one that works.
func TestSilentAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	silent, refused, works := fullListener(t), gone.Addr().String(), l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(undated{ctx}, "tcp", addr)
	}
	for _, addrs := range [][]string{{works}, {silent, works}, {refused, works}, {silent, refused, silent, works}, {works, silent}} {
		conn, failure := first(ctx, addrs, dial)
		if failure != nil {
			t.Errorf("%v: %v", addrs, failure)
			continue
		}
		if got := conn.RemoteAddr().String(); got != works {
			t.Errorf("%v: connected to %s", addrs, got)
		}
		_ = conn.Close()
	}
	if _, err = first(ctx, []string{refused, refused}, dial); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("no listener: %v", err)
	}
	all, err := addresses(ctx, &net.Dialer{}, "tcp", "localhost:7")
	if err != nil || len(all) == 0 || all[0] != "127.0.0.1:7" && all[0] != "[::1]:7" {
		t.Errorf("localhost: %v, %v", all, err)
	}
}

// TestZones: an address of a link is dialled with the zone that it was written or found with. Without, it belongs to no link.
func TestZones(t *testing.T) {
	t.Parallel()
	ips := []net.IPAddr{{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, {IP: net.IPv4(192, 0, 2, 1)}, {IP: net.ParseIP("2001:db8::1")}}
	for network, want := range map[string][]string{
		"tcp":  {"[fe80::1%eth0]:7", "192.0.2.1:7", "[2001:db8::1]:7"},
		"tcp4": {"192.0.2.1:7"},
		"tcp6": {"[fe80::1%eth0]:7", "[2001:db8::1]:7"},
	} {
		if got := dialled(ips, network, "7"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", network, got, want)
		}
	}
	const written = "[fe80::1%eth0]:7"
	if got, err := addresses(t.Context(), &net.Dialer{}, "tcp", written); err != nil || !slices.Equal(got, []string{written}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestIsLocal(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"": true, "localhost": true, "127.0.0.1": true, "::1": true, "192.0.2.1": false} {
		if got := IsLocal(t.Context(), host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

// fullListener returns the address of a listener at which a dial waits: its backlog is full and it does not accept.
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
