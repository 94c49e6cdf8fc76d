// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"net"
	"runtime"
	"strconv"
	"testing"
)

func TestPortsAreFreeAndDiffer(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 50 {
		port := FreePort(t)
		if seen[port] && runtime.GOOS == "linux" {
			t.Errorf("port %d twice", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}

func TestReservation(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("reservations need abstract sockets")
	}
	port, release, err := TakePort()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := reserve(port); ok {
		t.Errorf("port %d was given twice", port)
	}
	release()
	again, ok := reserve(port)
	if !ok {
		t.Fatalf("port %d is still reserved", port)
	}
	again()
}

func TestVacant(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if vacant("127.0.0.1", l.Addr().(*net.TCPAddr).Port) { //nolint:errcheck // a TCP listener
		t.Error("a port with a listener is called vacant")
	}
}
