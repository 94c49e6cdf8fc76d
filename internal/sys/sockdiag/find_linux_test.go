// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
)

// ways are the two ways to find a socket.
var ways = map[string]func(local, remote netip.AddrPort) (Socket, error){
	"netlink": Find,
	"proc":    func(local, remote netip.AddrPort) (Socket, error) { return findBy(local, remote, lookInTables) },
}

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
		for name, find := range ways {
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
	for name, find := range ways {
		if s, err := find(remote, local); err == nil && s.Inode != 0 || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// TestFindReset: of a connection that was reset no end is left. A kernel that tells about sockets is believed, without a look into /proc.
func TestFindReset(t *testing.T) {
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
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	local, remote := addrPort(t, client.LocalAddr()), addrPort(t, client.RemoteAddr())
	if _, err = ask(local, remote); err != nil {
		t.Skipf("netlink does not tell about sockets here: %v", err)
	}
	_ = client.(*net.TCPConn).SetLinger(0) //nolint:errcheck,forcetypeassert // it is one
	_ = client.Close()
	if _, err = server.Read(make([]byte, 1)); err == nil { // it ends when the reset is here
		t.Fatal("the client has sent something")
	}
	if _, _, err := look(local, remote); !errors.Is(err, ErrNotFound) {
		t.Errorf("found with the error %v, want %v", err, ErrNotFound)
	}
	if s, err := Find(local, remote); !errors.Is(err, ErrNotFound) {
		t.Errorf("found %+v, %v", s, err)
	}
}

// TestConclude: what is found of the two ends of a connection can be too little to say anything, because a table changed while it was read.
func TestConclude(t *testing.T) {
	t.Parallel()
	end := func(state State, inode uint32) Socket { return Socket{State: state, Inode: inode} }
	none := Socket{}
	for name, c := range map[string]struct {
		found, own Socket
		sure       bool
		err        error
	}{
		"both":                             {end(Established, 1), end(Established, 2), true, nil},
		"the other one alone":              {end(Established, 1), none, true, nil},
		"neither":                          {none, none, false, ErrUnavailable},
		"the own one, which has another":   {none, end(Established, 2), false, ErrNotFound},
		"the own one, whose peer is gone":  {none, end(CloseWait, 2), true, ErrNotFound},
		"no identities":                    {end(Established, 0), end(Established, 0), true, ErrUnavailable},
		"an end that no process has open":  {end(5, 0), end(CloseWait, 2), true, nil},
		"that one, and not the own one":    {end(5, 0), none, false, ErrUnavailable},
		"the own one without its identity": {none, end(Established, 0), true, ErrUnavailable},
	} {
		if s, sure, err := conclude(c.found, c.own); sure != c.sure || !errors.Is(err, c.err) || err == nil && s != c.found {
			t.Errorf("%s: %+v, %v, %v", name, s, sure, err)
		}
	}
}

// TestFindAgain: a table that lacks a line once is read again, and one that always lacks it is believed in the end.
func TestFindAgain(t *testing.T) {
	t.Parallel()
	both := [2]Socket{{State: Established, Inode: 1, UID: 7}, {State: Established, Inode: 2}}
	for lacks := range tries + 1 {
		looks := 0
		s, err := findBy(netip.AddrPort{}, netip.AddrPort{}, func(_, _ netip.AddrPort) (found, own Socket, err error) {
			if looks++; looks <= lacks {
				return Socket{}, both[1], nil
			}
			return both[0], both[1], nil
		})
		if lacks < tries && (err != nil || s.UID != 7 || looks != lacks+1) || lacks == tries && !errors.Is(err, ErrNotFound) {
			t.Errorf("it lacks a line %d times: %+v, %v after %d looks", lacks, s, err, looks)
		}
	}
}

// TestFindAmongMany: a socket is found while many others come and go.
func TestFindAmongMany(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
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
	var others sync.WaitGroup
	defer others.Wait()
	defer func() { _ = l.Close() }()
	others.Go(func() {
		for {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0) //nolint:errcheck,forcetypeassert // so that nothing is left of it
			_ = c.Close()
		}
	})
	others.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	for name, find := range ways {
		for range 30 {
			if s, err := find(plain(remote), plain(local)); err != nil || s.Inode == 0 {
				t.Fatalf("%s: %+v, %v", name, s, err)
			}
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

// TestFindListener: a socket that listens at one address is found there, and one that listens at all addresses is not.
func TestFindListener(t *testing.T) {
	for listen, found := range map[string]bool{"127.0.0.1:0": true, "0.0.0.0:0": false} {
		l, err := net.Listen("tcp4", listen)
		if err != nil {
			t.Fatal(err)
		}
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addrPort(t, l.Addr()).Port())
		s, err := FindListener(at)
		if errors.Is(err, ErrUnavailable) {
			t.Skip(err)
		}
		if found && (err != nil || s.Local != at || s.Inode == 0 || s.Backlog == 0) || !found && !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %+v, %v", listen, s, err)
		}
		_ = l.Close()
		if s, err = FindListener(at); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s, closed: %+v, %v", listen, s, err)
		}
	}
}
