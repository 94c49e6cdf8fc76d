// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"net"
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestFaithful: once the second address of a name was reached, the first one is not dialled although a server answers there now, until the
// second one has ended.
func TestFaithful(t *testing.T) { // not parallel: it changes how names are looked up
	second, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	port := strconv.Itoa(second.Addr().(*net.TCPAddr).Port) //nolint:errcheck // it is one
	testkit.ResolveTo(t, net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 0, 3))
	var f Faithful
	reach := func(host string) {
		t.Helper()
		conn, failed := f.Alive(t.Context(), "tcp", net.JoinHostPort("server.test", port))
		if failed != nil {
			t.Fatal(failed)
		}
		defer func() { _ = conn.Close() }()
		if got, want := conn.RemoteAddr().String(), net.JoinHostPort(host, port); got != want {
			t.Errorf("reached %s, want %s", got, want)
		}
	}
	reach("127.0.0.3")
	first, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	reach("127.0.0.3")
	_ = second.Close()
	reach("127.0.0.2")
}
