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

// TestBindHost: the rank that hosts the store listens only on the address that the ranks were told, or on the one that is asked for. It
// listens on all addresses when it was told a name, or an address that another machine has.
func TestBindHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8 on its loopback")
	}
	for _, c := range []struct {
		told, bind string
		reached    bool
	}{
		{"127.0.0.1", "", false},
		{"localhost", "", false},
		{"127.0.0.1", "127.0.0.1", false},
		{"127.0.0.1", "0.0.0.0", true},
		{"127.0.0.3", "0.0.0.0", true},
		{"0.0.0.0", "", true},
	} {
		port := testkit.FreePort(t)
		join(t, fmt.Sprintf("tcp://%s:%d?rank=0&world_size=1", c.told, port), rendezvous.WithBindHost(c.bind))
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(port)))
		if (err == nil) != c.reached {
			t.Errorf("%+v: 127.0.0.2 gives %v", c, err)
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
