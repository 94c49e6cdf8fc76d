// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"fmt"
	"sync"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// BenchmarkSerialised measures which share of the loops' time is spent with the lock: what cannot be done by several of them at
// the same time. Sixteen clients call in closed loops; locked-% is of the time in which loops do not sleep.
//
//	go test ./internal/storeserve -run '^$' -bench Serialised
func BenchmarkSerialised(b *testing.B) {
	requests := []struct {
		name    string
		request []byte
		reply   int
	}{
		{"add", wire.AppendAdd(nil, wire.V, "/n", 1), 8},
		{"check", wire.AppendKeys(nil, wire.V, wire.Check, "/k"), 1},
		{"get/100B", wire.AppendKey(nil, wire.V, wire.Get, "/k"), 8 + 100},
		{"get/16KiB", wire.AppendKey(nil, wire.V, wire.Get, "/large"), 8 + 16<<10},
		{"set/16KiB", wire.AppendPing(wire.AppendSet(nil, wire.V, "/s", make([]byte, 16<<10)), wire.V, 1), 4},
		{"set/1MiB", wire.AppendPing(wire.AppendSet(nil, wire.V, "/s", make([]byte, 1<<20)), wire.V, 1), 4},
	}
	for _, loops := range []int{1, 2, 4} {
		for _, r := range requests {
			b.Run(fmt.Sprintf("loops=%d/%s", loops, r.name), func(b *testing.B) {
				serialised(b, loops, r.request, r.reply)
			})
		}
	}
}

func serialised(b *testing.B, loops int, request []byte, reply int) {
	b.Helper()
	var meters []*meter
	s := startServer(b, func(c *Config) {
		c.Loops = loops
		c.meter = func() *meter {
			meters = append(meters, &meter{wokeAt: time.Now()})
			return meters[len(meters)-1]
		}
	})
	c := dialV(b, s)
	write(b, c, wire.AppendSet(nil, wire.V, "/k", make([]byte, 100)))
	write(b, c, wire.AppendSet(nil, wire.V, "/large", make([]byte, 16<<10)))
	const clients = 16
	var all sync.WaitGroup
	for range clients {
		c := dialV(b, s)
		all.Go(func() {
			for range b.N/clients + 1 {
				write(b, c, request)
				read(b, c, reply)
			}
		})
	}
	all.Wait()
	s.close()
	var awake, locked time.Duration
	steps := 0
	for _, m := range meters {
		m.sleep()
		awake, locked, steps = awake+m.awake, locked+m.locked, steps+m.steps
	}
	b.ReportMetric(100*float64(locked)/float64(awake), "locked-%")
	b.ReportMetric(float64(locked)/float64(b.N), "locked-ns/op")
	b.ReportMetric(float64(awake)/float64(b.N), "awake-ns/op")
	b.ReportMetric(float64(steps)/float64(b.N), "steps/op")
}
