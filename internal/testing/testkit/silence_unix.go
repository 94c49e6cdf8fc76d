// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package testkit

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// SilentServer makes an address of this machine one at which a dial waits until the end of the test, as if its packets
// were lost: the backlog of the listener is full and connections are not accepted.
func SilentServer(tb testing.TB, ip net.IP, port int) {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte(ip.To4()), Port: port}); err != nil {
		tb.Fatal(err)
	}
	if err = syscall.Listen(fd, 0); err != nil {
		tb.Fatal(err)
	}
	for range 64 {
		//nolint:noctx // it is bounded
		conn, err := net.DialTimeout("tcp", (&net.TCPAddr{IP: ip, Port: port}).String(), 100*time.Millisecond)
		if err != nil {
			return
		}
		tb.Cleanup(func() { _ = conn.Close() })
	}
	tb.Fatal("this platform lets connections wait beyond the backlog")
}
