// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestEndpointWithDeadAddresses: the name of an endpoint has four addresses. Three of them swallow what is sent to them, and the rendezvous
// is at the last one.
func TestEndpointWithDeadAddresses(t *testing.T) { // not parallel: it changes how names are looked up
	listener, err := net.Listen("tcp", "127.0.0.5:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port //nolint:errcheck // it is one
	var ips []net.IP
	for last := range byte(3) {
		ips = append(ips, net.IPv4(127, 0, 0, 2+last))
		testkit.SilentServer(t, ips[last], port)
	}
	testkit.ResolveTo(t, append(ips, net.IPv4(127, 0, 0, 5))...)
	j := newElection(t, "127.0.0.1").job
	conn, err := j.connect(net.JoinHostPort("endpoint.test", strconv.Itoa(port)), 20*time.Second, false, j.secured(""))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := conn.RemoteAddr().String(), listener.Addr().String(); got != want {
		t.Errorf("connected to %s, want %s", got, want)
	}
	_ = conn.Close()
}
