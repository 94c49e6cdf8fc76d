// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package peeruid

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestAddressOfNoInterface: the kernel takes addresses for this host's that no interface has. Another user who connects from one is
// refused, at the loopback interface and at such an address; an address that is routed elsewhere is not this host's.
func TestAddressOfNoInterface(t *testing.T) {
	testkit.NeedOtherUser(t)
	runtime.LockOSThread() // never unlocked: the thread is in a network of its own, and ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("this machine cannot make network namespaces: %v", err)
	}
	for _, args := range []string{
		"link set lo up", "route add local 10.99.0.0/24 dev lo", "-6 route add local fd99::/64 dev lo", "route add 10.98.0.0/24 dev lo",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("this machine cannot make a network: ip %s: %v %s", args, err, out)
		}
	}
	for addr, want := range map[string]bool{"10.99.0.5": true, "fd99::5": true, "10.98.0.5": false, "192.0.2.1": false, "fd98::1": false} {
		if got := new(ownAddrs).has(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is an address of this host: %v", addr, got)
		}
	}
	for _, at := range []string{"127.0.0.1", "10.99.0.7", "::1"} {
		from := "10.99.0.5"
		if strings.Contains(at, ":") {
			from = "fd99::5"
		}
		if user, accepted := connect(t, from, at); user != testkit.OtherUser || accepted {
			t.Errorf("user %d at %s from %s: accepted %v", user, at, from, accepted)
		}
	}
}

// connect makes a connection of the other user by hand, in the network of this thread, and asks a policy about it.
func connect(t *testing.T, from, at string) (user uint32, accepted bool) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	fd := socketOfOther(t, netip.MustParseAddr(from), netip.MustParseAddrPort(l.Addr().String()))
	defer func() { _ = unix.Close(fd) }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var info unix.Stat_t
	if err = unix.Fstat(fd, &info); err != nil {
		t.Fatal(err)
	}
	return info.Uid, newPolicy(nil, nil).AcceptsConn(c)
}

// socketOfOther connects a socket that belongs to the other user.
func socketOfOther(t *testing.T, from netip.Addr, at netip.AddrPort) int {
	t.Helper()
	domain, level, freebind := unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	if from.Is4() {
		domain, level, freebind = unix.AF_INET, unix.IPPROTO_IP, unix.IP_FREEBIND
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Fchown(fd, testkit.OtherUser, testkit.OtherUser)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, level, freebind, 1) // every user may
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0)))
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(at))
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
