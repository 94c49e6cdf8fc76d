// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"net"
	"os"
	"strings"
	"testing"
)

func portOf(t *testing.T, addr net.Addr) int {
	t.Helper()
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no TCP address", addr)
	}
	return tcp.Port
}

func TestFindNamesThisProcess(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Skipf("no such address here: %v", err)
		}
		port := portOf(t, listener.Addr())
		owner, ok := Find(port)
		if !ok || owner.PID != os.Getpid() || !strings.Contains(owner.Command, "portowner") {
			t.Errorf("owner of %s is %v, %v; want pid %d", listener.Addr(), owner, ok, os.Getpid())
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		if owner, ok := Find(port); ok {
			t.Errorf("port %d is free, but Find names %v", port, owner)
		}
	}
}

func TestFindIgnoresConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if owner, ok := Find(portOf(t, conn.LocalAddr())); ok {
		t.Errorf("a connected socket is no listener, but Find names %v", owner)
	}
}
