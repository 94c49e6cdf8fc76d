// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package storeserve

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// TestAddr: without a host the listener takes connections to every address that this machine has.
func TestAddr(t *testing.T) {
	t.Parallel()
	l, err := Addr(":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("it listens on %v", l.Addr())
	}
	port := strconv.Itoa(at.Port)
	reached := 0
	for _, host := range []string{"127.0.0.1", "::1"} {
		probe, missing := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if missing != nil {
			t.Logf("this machine has no %s", host)
			continue
		}
		_ = probe.Close()
		c, refused := net.Dial("tcp", net.JoinHostPort(host, port))
		if refused != nil {
			t.Error(refused)
			continue
		}
		_ = c.Close()
		reached++
	}
	if reached == 0 {
		t.Error("no address was reached")
	}
	if again, taken := Addr(":" + port); !errors.Is(taken, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v, %v", again, taken)
	}
	if _, err = Addr("nonsense"); err == nil {
		t.Error("an address without a port")
	}
	four, err := Addr("0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = four.Close() }()
	_, fourPort, _ := net.SplitHostPort(four.Addr().String())
	if c, reached := net.Dial("tcp6", net.JoinHostPort("::1", fourPort)); reached == nil {
		_ = c.Close()
		t.Error("0.0.0.0 is reached by IPv6")
	}
	one, err := Addr("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if ip := one.Addr().(*net.TCPAddr).IP.String(); ip != "127.0.0.1" { //nolint:errcheck,forcetypeassert // of TCP
		t.Errorf("it listens on %s", ip)
	}
	_ = one.Close()
}
