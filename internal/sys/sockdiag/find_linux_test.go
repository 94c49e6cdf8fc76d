// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
)

func addrPort(t *testing.T, a net.Addr) netip.AddrPort {
	t.Helper()
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		t.Fatal(a)
	}
	return tcp.AddrPort()
}

// TestFind: both ends of a connection are found over netlink and in /proc, with the user who made them, also one of IPv6 that is connected
// over IPv4. One that does not exist is not, nor is the listener in its place.
func TestFind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ listen, dial string }{{"127.0.0.1:0", "127.0.0.1"}, {"[::1]:0", "::1"}, {"[::]:0", "127.0.0.1"}} {
		l, err := net.Listen("tcp", c.listen)
		if err != nil {
			t.Logf("no such address here: %v", err)
			continue
		}
		defer func() { _ = l.Close() }()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		client, err := net.Dial("tcp", net.JoinHostPort(c.dial, port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		local, remote := addrPort(t, server.LocalAddr()), addrPort(t, server.RemoteAddr())
		for name, find := range map[string]func(a, b netip.AddrPort) (Socket, error){"netlink": Find, "proc": findInTables} {
			for _, end := range [][2]netip.AddrPort{{local, remote}, {remote, local}} {
				s, err := find(plain(end[0]), plain(end[1]))
				if err != nil || s.Local != plain(end[0]) || s.Remote != plain(end[1]) || s.Inode == 0 || int(s.UID) != os.Getuid() ||
					s.State != Established {
					t.Errorf("%s, %v: %+v, %v", name, end, s, err)
				}
			}
		}
		none := netip.AddrPortFrom(plain(remote).Addr(), 1)
		if s, err := Find(none, local); !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotFound) {
			t.Errorf("a socket that does not exist: %+v, %v", s, err)
		}
	}
}

// TestFindGone: the socket of a client that has closed its end belongs to no process any more, and its user is not known.
func TestFindGone(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err = client.Close(); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	local, remote := addrPort(t, server.LocalAddr()), addrPort(t, server.RemoteAddr())
	for name, find := range map[string]func(a, b netip.AddrPort) (Socket, error){"netlink": Find, "proc": findInTables} {
		if s, err := find(remote, local); err == nil && s.Inode != 0 || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// BenchmarkFind is what one accepted connection costs.
func BenchmarkFind(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	local, remote := client.LocalAddr().(*net.TCPAddr).AddrPort(), client.RemoteAddr().(*net.TCPAddr).AddrPort() //nolint:errcheck // TCP
	for b.Loop() {
		if _, err := Find(local, remote); err != nil {
			b.Fatal(err)
		}
	}
}
