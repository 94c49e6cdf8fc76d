// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"fmt"
	"net"
	"runtime"
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestBindHost: the rank that hosts the store listens on all addresses, as PyTorch does, or only on the one that is asked for.
func TestBindHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8 on its loopback")
	}
	for host, reached := range map[string]bool{"": true, "127.0.0.1": false} {
		port := testkit.FreePort(t)
		join(t, fmt.Sprintf("tcp://127.0.0.1:%d?rank=0&world_size=1", port), rendezvous.WithBindHost(host))
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(port)))
		if (err == nil) != reached {
			t.Errorf("bound to %q, 127.0.0.2 gives %v", host, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestServerOptions: the hosted server has the limits that it is given.
func TestServerOptions(t *testing.T) {
	limits := tcpstore.DefaultLimits()
	limits.Value = 100
	m := join(t, fmt.Sprintf("tcp://127.0.0.1:%d?rank=0&world_size=1", testkit.FreePort(t)),
		rendezvous.WithServerOptions(tcpstore.WithLimits(limits)))
	set(t, m.Store(), "key", "value")
	if err := m.Store().Set(t.Context(), "key", make([]byte, 101)); err == nil {
		t.Error("a value over the limit was taken")
	}
	checkGet(t, m.Store(), "key", "value")
}
