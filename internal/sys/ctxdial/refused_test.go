// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestRefused: a refusal is recognised by the numbers of each system, and nothing else is one.
func TestRefused(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	conn, err := Dial(t.Context(), &net.Dialer{}, "tcp", gone.Addr().String())
	if err == nil {
		_ = conn.Close()
	}
	system := func(number syscall.Errno) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connectex", number)}
	}
	const windows = 10061 // WSAECONNREFUSED
	if !Refused(err) || !Refused(system(syscall.ECONNREFUSED)) || !Refused(system(windows)) {
		t.Errorf("not taken for a refusal: %v, %v or %v", err, system(syscall.ECONNREFUSED), system(windows))
	}
	for _, other := range []error{nil, system(syscall.ECONNRESET), system(syscall.ETIMEDOUT), net.ErrClosed} {
		if Refused(other) {
			t.Errorf("taken for a refusal: %v", other)
		}
	}
}

// TestEnds: the numbers of each system for a connection that has ended, or a machine that does not answer, are recognised, and nothing else is.
func TestEnds(t *testing.T) {
	t.Parallel()
	system := func(number syscall.Errno) error {
		return &net.OpError{Op: "read", Err: os.NewSyscallError("wsarecv", number)}
	}
	const windowsAborted, windowsReset, windowsTimedOut, windowsDown, windowsUnreachable = 10053, 10054, 10060, 10064, 10065
	for _, c := range []struct {
		err                  error
		reset, ended, silent bool
	}{
		{err: nil},
		{err: net.ErrClosed},
		{err: os.ErrDeadlineExceeded},
		{err: system(syscall.ECONNREFUSED)},
		{err: io.EOF, ended: true},
		{err: io.ErrUnexpectedEOF, ended: true},
		{err: system(syscall.ECONNRESET), reset: true, ended: true},
		{err: system(syscall.EPIPE), reset: true, ended: true},
		{err: system(windowsReset), reset: true, ended: true},
		{err: system(windowsAborted), reset: true, ended: true},
		{err: system(syscall.ETIMEDOUT), silent: true},
		{err: system(syscall.EHOSTUNREACH), silent: true},
		{err: system(windowsTimedOut), silent: true},
		{err: system(windowsDown), silent: true},
		{err: system(windowsUnreachable), silent: true},
	} {
		if Reset(c.err) != c.reset || Ended(c.err) != c.ended || Silent(c.err) != c.silent {
			t.Errorf("%v: reset %v, ended %v, silent %v", c.err, Reset(c.err), Ended(c.err), Silent(c.err))
		}
	}
}
