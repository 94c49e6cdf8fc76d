// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"net"
	"runtime"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestClientsThatLeftHoldNoMemory: clients are answered together, then each sends most of a large request and leaves. What they
// have sent is not counted any more, so it must not be there.
func TestClientsThatLeftHoldNoMemory(t *testing.T) {
	for _, driver := range []struct {
		name string
		edit func(*Config)
	}{
		{"loop", func(*Config) {}},
		{"loops", func(c *Config) { c.Loops = 3 }},
		{"goroutines", func(c *Config) { c.Portable = true }},
	} {
		t.Run(driver.name, func(t *testing.T) {
			const limit, size, clients = 32 << 20, 4 << 20, 16
			s := startServer(t, driver.edit, func(c *Config) { c.Machine.Limits.Memory = limit })
			conns := make([]net.Conn, clients)
			for i := range conns {
				conns[i] = dialV(t, s)
				write(t, conns[i], wire.AppendKeys(nil, wire.V, wire.Wait, "/k"))
			}
			testkit.Until(t, "all wait", func() bool { return s.snapshot().NWaits == clients })
			write(t, dialV(t, s), wire.AppendSet(nil, wire.V, "/k", nil))
			for _, c := range conns {
				read(t, c, 1)
			}
			most := wire.AppendSet(nil, wire.V, "/large", make([]byte, size))
			most = most[:len(most)-1]
			before := heap()
			for i, c := range conns {
				write(t, c, most)
				testkit.Until(t, "it is read", func() bool { return s.snapshot().Memory >= size })
				_ = c.Close()
				testkit.Until(t, "the client is gone", func() bool { return s.clients() == clients-i })
			}
			if after := heap(); after > before+limit {
				t.Errorf("the heap has grown from %d to %d MiB, the limit is %d MiB", before>>20, after>>20, limit>>20)
			}
		})
	}
}

// heap is how many bytes can be reached.
func heap() uint64 {
	for range 2 { // what was found unreachable while it was swept counts until the next time
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
