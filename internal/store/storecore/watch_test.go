// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// holds is the memory that a machine has for keys, values, waits, requests, replies and callbacks. What several replies
// refer to is there once.
func (b *bench) holds() int64 {
	n := (b.m.table.Bytes() + b.m.queues.bytes) + b.m.admission.waits
	seen := map[*byte]bool{}
	once := func(data []byte) {
		if p := unsafe.SliceData(data[:cap(data)]); !seen[p] {
			seen[p] = true
			n += int64(cap(data))
		}
	}
	for _, c := range b.m.conns.all {
		n += int64(cap(c.in.buf) + cap(c.out.Buf))
		own := uintptr(unsafe.Pointer(unsafe.SliceData(c.out.Buf)))
		for _, piece := range c.Pending(nil, math.MaxInt) { // none of them is sent
			if at := uintptr(unsafe.Pointer(unsafe.SliceData(piece))); at < own || at >= own+uintptr(cap(c.out.Buf)) {
				once(piece) // it is referred to
			}
		}
	}
	for _, t := range b.m.keyChanges {
		once(t.event)
	}
	return n
}

// TestCallbacksOfOneStepAreCounted: callbacks of one MULTI_SET, small or large, to watchers that read nothing never
// take more than the limit. So do answers to those that wait for a key.
func TestCallbacksOfOneStepAreCounted(t *testing.T) {
	const watchers = 1400
	for _, c := range []struct {
		size, pairs int
		waits       bool
	}{
		{size: 3000, pairs: 1},
		{size: 1000, pairs: 50},
		{size: 10_000, pairs: 100},
		{size: 200_000, pairs: 4},
		{size: 4000, pairs: 1, waits: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			limits := workLimits
			limits.Memory = 3 << 20
			b := newBench(limits)
			for range watchers {
				if c.waits {
					b.send(b.dial(wire.Native), frame(1, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "/0") }))
					continue
				}
				w := b.m.Open("watcher", nil)
				for i := range min(c.pairs, 4) {
					b.send(w, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, fmt.Sprint("/", i)))
				}
			}
			writer := b.dial(wire.Native)
			keys, values := make([]string, c.pairs), make([][]byte, c.pairs)
			for i := range keys {
				keys[i], values[i] = fmt.Sprint("/", i%4), make([]byte, c.size)
			}
			b.m.Receive(writer, frame(1, func(f []byte) []byte { return wire.AppendMultiSet(f, wire.Native, keys, values) }))
			most := b.holds()
			for range 1000 { // no client reads
				if !b.m.Busy() {
					break
				}
				b.turn()
				most = max(most, b.holds())
			}
			if writer.Cut() != nil || b.m.table.Len() == 0 {
				t.Errorf("the writer was cut with %v, there are %d keys", writer.Cut(), b.m.table.Len())
			}
			t.Logf("%d of %d bytes, %d cut", most, limits.Memory, b.m.counts.cuts)
			if most > limits.Memory {
				t.Errorf("the machine holds %d bytes, the limit is %d", most, limits.Memory)
			}
		})
	}
}
