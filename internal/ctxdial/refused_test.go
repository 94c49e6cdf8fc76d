// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// TestRefused: a refusal is known by what each system says, and nothing else is one.
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
	said := func(number syscall.Errno) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connectex", number)}
	}
	const windows = 10061 // WSAECONNREFUSED
	if !Refused(err) || !Refused(said(syscall.ECONNREFUSED)) || !Refused(said(windows)) {
		t.Errorf("not taken for a refusal: %v, %v or %v", err, said(syscall.ECONNREFUSED), said(windows))
	}
	for _, other := range []error{nil, said(syscall.ECONNRESET), said(syscall.ETIMEDOUT), net.ErrClosed} {
		if Refused(other) {
			t.Errorf("taken for a refusal: %v", other)
		}
	}
}
