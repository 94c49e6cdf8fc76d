// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"fmt"
	"runtime"
	"testing"
	"weak"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestClosedConnectionsAreForgotten: a connection is not counted any more once it is closed, so nothing in the machine may refer to
// it: a driver keeps buffers with it. Those here were answered together, waited for room and for their turn, and watched a key.
func TestClosedConnectionsAreForgotten(t *testing.T) {
	limits := testLimits
	limits.Memory = 32 << 20
	b := newBench(limits)
	setter := b.dial(wire.V)
	var closed []weak.Pointer[Conn]
	for i := range 100 {
		d := []wire.Dialect{wire.Legacy, wire.V, wire.Native}[i%3]
		c := b.dial(d)
		closed = append(closed, weak.Make(c))
		switch d {
		case wire.Native:
			b.send(c, frame(1, func(b []byte) []byte { return wire.AppendKey(b, d, wire.Get, "/come") }))
			b.send(c, frame(2, func(b []byte) []byte { return wire.AppendKeys(b, d, wire.Wait, "/come", "/never") }))
		case wire.V:
			b.send(c, wire.AppendKeys(nil, d, wire.Wait, "/come"))
		default:
			b.send(c, wire.AppendKey(nil, d, wire.WatchKey, "/come"))
		}
	}
	b.send(setter, wire.AppendSet(nil, wire.V, "/come", make([]byte, 1<<20)))
	for i, w := range closed {
		if i%2 == 0 { // the others are in the middle of a request
			b.m.Receive(w.Value(), wire.AppendSet(nil, wire.V, "/big", make([]byte, 1<<20))[:1<<19])
		}
		b.m.Close(w.Value())
	}
	clear(b.got)
	clear(b.cuts)
	for range 2 { // "valid until the call after the next one"
		b.turn()
		b.m.Dirty()
	}
	runtime.GC()
	reached := 0
	for _, w := range closed {
		if w.Value() != nil {
			reached++
		}
	}
	if reached > 0 {
		t.Errorf("%d of %d connections can still be reached", reached, len(closed))
	}
	runtime.KeepAlive(b)
}

// TestTakenItemsAreForgotten: what was taken from a queue is not counted any more, so the queue must not refer to it.
func TestTakenItemsAreForgotten(t *testing.T) {
	b := newBench(testLimits)
	c := b.dial(wire.V)
	const items = 100
	for i := range items {
		b.send(c, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", fmt.Appendf(nil, "item %d", i)))
	}
	for range items - 1 {
		b.send(c, wire.AppendKey(nil, wire.V, wire.QueuePop, "/q"))
	}
	q := b.m.queues.byKey["/q"]
	kept := 0
	for _, item := range q.items[:cap(q.items)] {
		if item != nil {
			kept++
		}
	}
	if q.len() != 1 || kept != 1 {
		t.Errorf("a queue of %d items refers to %d", q.len(), kept)
	}
}
