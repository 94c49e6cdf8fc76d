// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package peeruid

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestListener: a real listener leaves out a real connection of another user, and one that was closed before it was accepted, on the
// loopback interface and on another address of this host.
func TestListener(t *testing.T) {
	testkit.NeedOtherUser(t)
	addrs := []string{"127.0.0.1:0", "[::1]:0"}
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.IsGlobalUnicast() {
			addrs = append(addrs, net.JoinHostPort(ip.IP.String(), "0"))
		}
	}
	for _, addr := range addrs {
		plain, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("no such address here: %v", err)
			continue
		}
		var said []string
		l := newPolicy(nil, func(text string) { said = append(said, text) }).Listener(plain)
		defer func() { _ = l.Close() }()
		at := l.Addr().String()
		gone, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		_ = gone.Close()
		if _, err = testkit.DialAs(t, "tcp", at); err != nil {
			t.Fatal(err)
		}
		own, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = own.Close() }()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if c.RemoteAddr().String() != own.LocalAddr().String() {
			t.Errorf("%s: accepted %v, want %v", addr, c.RemoteAddr(), own.LocalAddr())
		}
		if len(said) != 1 || !strings.Contains(said[0], "user 65534") {
			t.Errorf("%q", said)
		}
		allowed := newPolicy([]uint32{testkit.OtherUser}, nil).Listener(plain)
		other, err := testkit.DialAs(t, "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if c, err = allowed.Accept(); err != nil || c.RemoteAddr().String() != other.LocalAddr().String() {
			t.Errorf("%v, %v", c, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Error("the thread that acted as another user is still used")
	}
}
