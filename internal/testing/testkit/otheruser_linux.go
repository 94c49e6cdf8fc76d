// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// OtherUser is the user in tests of what other users of a host can do.
const OtherUser = 65534

// NeedOtherUser skips a test where this process cannot act as another user, except where everything is required.
func NeedOtherUser(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("COHORT_INTEROP") == "required" {
		t.Fatal("the test needs root, which can act as another user")
	}
	t.Skip("only root can act as another user")
}

// DialAs connects to an address as [OtherUser].
func DialAs(t *testing.T, network, addr string) (net.Conn, error) {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		const keep = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, OtherUser, keep); errno != 0 {
			results <- result{err: errors.Join(errors.New("act as another user"), errno)}
			return
		}
		c, err := (&net.Dialer{}).DialContext(t.Context(), network, addr)
		results <- result{c, err}
	}()
	r := <-results
	if r.err == nil {
		t.Cleanup(func() { _ = r.conn.Close() })
	}
	return r.conn, r.err
}

// RefusesOtherUser checks that a server ends a connection of another user before it says anything.
func RefusesOtherUser(t *testing.T, network, addr string) {
	t.Helper()
	c, err := DialAs(t, network, addr)
	if err != nil {
		t.Errorf("connect to %s: %v", addr, err)
		return
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%s answers another user: %d bytes, %v", addr, n, err)
	}
}
