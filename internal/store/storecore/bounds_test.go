// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

func TestMemoryLimit(t *testing.T) {
	limits := testLimits
	limits.Memory = 64 << 10
	b := newBench(limits)
	writer := b.dial(wire.Native)
	full := 0
	for i := range 1000 {
		b.send(writer, frame(1, func(f []byte) []byte {
			return wire.AppendSet(f, wire.Native, fmt.Sprint("key", i), make([]byte, 100))
		}))
		if b.take(writer)[8] == byte(cohort.Exhausted) {
			full++
		}
	}
	if full < 500 || b.m.memory() > limits.Memory+4096 { // allocations are rounded up
		t.Errorf("%d sets were refused, %d of %d bytes are taken", full, b.m.memory(), limits.Memory)
	}
	b.send(writer, frame(2, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "key0") }))
	if got := b.take(writer); len(got) != 9+8+100 {
		t.Errorf("a full store can still be read: %q", got)
	}
	for i := range 1000 {
		b.send(writer, frame(3, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.DeleteKey, fmt.Sprint("key", i)) }))
	}
	if b.m.table.Bytes() != 0 || b.m.table.Len() != 0 {
		t.Errorf("%d bytes, %d keys are left", b.m.table.Bytes(), b.m.table.Len())
	}
	// Clients that stop in the middle of a request do not take more than there is.
	for range 100 {
		c := b.dial(wire.V)
		b.send(c, wire.AppendSet(nil, wire.V, "k", make([]byte, 1000))[:900])
		b.send(c, make([]byte, 50))
	}
	if len(b.cuts) < 30 || b.m.memory() > limits.Memory {
		t.Errorf("%d clients were cut, %d bytes are taken", len(b.cuts), b.m.memory())
	}
}

// TestRepliesStayWithinTheirShare: what clients are owed takes its share of the memory and no more, whatever they asked for. A reply that
// does not fit waits, and no client is cut for it.
func TestRepliesStayWithinTheirShare(t *testing.T) {
	const clients, size = 150, 250 << 10 // three times the share
	big := make([]byte, size)
	for name, request := range map[string][]byte{
		"get":                          wire.AppendKey(nil, wire.V, wire.Get, "/value"),
		"multi_get":                    wire.AppendKeys(nil, wire.V, wire.MultiGet, "/value"),
		"compare_set":                  wire.AppendCompareSet(nil, wire.V, "/value", []byte("x"), nil),
		"compare_set of the value":     wire.AppendCompareSet(nil, wire.V, "/value", big, big),
		"compare_set of a missing key": wire.AppendCompareSet(nil, wire.V, "/none", big, nil),
		"queue_pop":                    wire.AppendKey(nil, wire.V, wire.QueuePop, "/items"),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(hostileLimits)
			writer := b.dial(wire.V)
			b.send(writer, wire.AppendSet(nil, wire.V, "/value", big))
			for range 40 {
				b.send(writer, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/items", big))
			}
			var most int64
			for range clients {
				c := b.m.Open("silent", nil)
				b.m.Receive(c, append(wire.AppendValidate(nil), request...))
				most = max(most, b.m.admission.out)
				if err := c.Cut(); err != nil {
					t.Fatalf("a client was cut: %v", err)
				}
			}
			if room := b.m.admission.shares.out; most > room+clients*keepBuffer || most < room/2 {
				t.Errorf("replies take %d bytes, their share is %d", most, room)
			}
		})
	}
}

// TestCallbacksStayWithinTheirShare: a watcher that does not read what it is told is cut when the share of replies is full, not when the
// whole memory is, and not before: what it is owed already is counted once.
func TestCallbacksStayWithinTheirShare(t *testing.T) {
	b := newBench(hostileLimits)
	writer, watcher := b.dial(wire.V), b.m.Open("silent", nil)
	b.m.Receive(watcher, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "/watched"))
	var most, owed int64
	for range 100 {
		b.m.Receive(writer, wire.AppendSet(nil, wire.V, "/watched", make([]byte, 250<<10)))
		most, owed = max(most, b.m.admission.out), max(owed, int64(watcher.Owed()))
	}
	room := b.m.admission.shares.out
	if callback := int64(500<<10 + 100); owed+callback < room-room/4 {
		t.Errorf("the watcher was cut when it was owed %d bytes, and another %d had room in %d", owed, callback, room-room/4)
	}
	if most > room+keepBuffer || !errors.Is(watcher.Cut(), cohort.Exhausted) || writer.Cut() != nil {
		t.Errorf("callbacks take %d bytes, their share is %d; the watcher was cut with %v, the writer with %v", most, room,
			watcher.Cut(), writer.Cut())
	}
}

// One value that very many wait for is copied for each of them, and those copies count, too.
func TestManyWaitersOfALargeValueAreBounded(t *testing.T) {
	for _, size := range []int{1 << 20, 64 << 10} {
		limits := testLimits
		limits.Memory = 64 << 20
		b := newBench(limits)
		var waiters []*Conn
		for range 200 {
			c := b.dial(wire.Native)
			b.send(c, frame(1, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "/model") }))
			waiters = append(waiters, c)
		}
		writer := b.dial(wire.Legacy)
		b.m.Receive(writer, wire.AppendKeyValue(nil, wire.Legacy, wire.Set, "/model", make([]byte, size)))
		for b.m.Busy() { // no client reads yet
			b.m.Tick(b.m.clock.now)
			b.m.Resume()
		}
		held := int64(0)
		for _, c := range waiters {
			held += int64(c.out.Memory())
		}
		if held > limits.Memory {
			t.Errorf("%d waiters of %d bytes: buffers of %d bytes, the limit is %d", len(waiters), size, held, limits.Memory)
		}
		if !b.m.Queued() && size > 64<<10 {
			t.Errorf("%d waiters of %d bytes have room at once", len(waiters), size)
		}
		for b.m.Queued() {
			b.flush()
			b.m.Admit()
		}
		b.flush()
		served := 0
		for _, c := range waiters {
			if got := b.take(c); len(got) == size+17 && got[8] == 0 {
				served++
			}
		}
		if served != len(waiters) || len(b.cuts) != 0 || b.m.waits.n != 0 {
			t.Errorf("%d waiters of %d bytes: %d were served, %d cut, %d wait", len(waiters), size, served, len(b.cuts), b.m.waits.n)
		}
	}
}

// The first piece of a request counts as well: many clients that send one piece each must not take all memory.
func TestFirstPiecesAreBounded(t *testing.T) {
	limits := testLimits
	limits.Memory = 1 << 20
	b := newBench(limits)
	half := wire.AppendKeyValue(nil, wire.Legacy, wire.Set, "/k", make([]byte, 100<<10))[:60<<10]
	for range 20 {
		b.send(b.dial(wire.Legacy), half)
	}
	if b.m.memory() > limits.Memory {
		t.Errorf("%d bytes of buffers, %d clients cut", b.m.admission.in, len(b.cuts))
	}
	honest := b.dial(wire.Legacy)
	b.send(honest, wire.AppendKeyValue(nil, wire.Legacy, wire.Set, "/mine", make([]byte, 200<<10)))
	if err := b.cuts[honest]; err != nil {
		t.Errorf("an honest client cannot store: %v", err)
	}
}

func TestSlowReader(t *testing.T) {
	limits := testLimits
	limits.Output = 1 << 20
	b := newBench(limits)
	c, other := b.m.Open("slow", nil), b.dial(wire.V)
	b.send(other, wire.AppendSet(nil, wire.V, "k", make([]byte, 100<<10)))
	b.m.Receive(c, wire.AppendValidate(nil))
	get := wire.AppendKey(nil, wire.V, wire.Get, "k")
	for range 100 {
		b.m.Receive(c, get)
	}
	if !c.Paused() || c.Owed() > 2*highWater || c.Cut() != nil {
		t.Fatalf("paused %v, %d bytes, %v", c.Paused(), c.Owed(), c.Cut())
	}
	total := 0
	for c.Owed() > 0 {
		n := min(10<<10, c.Owed())
		total += n
		b.m.Sent(c, n)
	}
	if want := 100 * (100<<10 + 8); total != want || c.Paused() || b.m.admission.out != int64(c.out.counted+other.out.counted) {
		t.Errorf("%d bytes were sent, want %d; paused %v", total, want, c.Paused())
	}
	// What no client asked for is bounded, too.
	w := b.m.Open("watcher", nil)
	b.m.Receive(w, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "k"))
	for range 100 {
		b.m.Receive(other, wire.AppendSet(nil, wire.V, "k", make([]byte, 100<<10)))
	}
	if !errors.Is(w.Cut(), cohort.Exhausted) || len(b.m.watchers) != 0 {
		t.Errorf("a watcher that does not read: %v", w.Cut())
	}
}

func TestReplyOverTheLimit(t *testing.T) {
	limits := testLimits
	limits.Output = 10 << 10
	b := newBench(limits)
	v, n := b.dial(wire.V), b.dial(wire.Native)
	b.send(n, frame(1, func(f []byte) []byte { return wire.AppendSet(f, wire.Native, "k", make([]byte, 9<<10)) }))
	b.take(n)
	b.send(n, frame(2, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.MultiGet, "k", "k") }))
	if got := b.take(n); got[8] != byte(cohort.TooLarge) {
		t.Errorf("native: %q", got)
	}
	b.send(v, wire.AppendKeys(nil, wire.V, wire.MultiGet, "k", "k"))
	if !errors.Is(b.cuts[v], cohort.TooLarge) {
		t.Errorf("v: %v", b.cuts[v])
	}
}

func TestWaitLimit(t *testing.T) {
	limits := testLimits
	limits.Waits = 5
	b := newBench(limits)
	n, v, l := b.dial(wire.Native), b.dial(wire.V), b.dial(wire.Legacy)
	for i := range 6 {
		b.send(n, frame(uint32(i), func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "k") }))
		b.send(v, wire.AppendKeys(nil, wire.V, wire.Wait, "k"))
		b.send(l, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, strconv.Itoa(i)))
	}
	if got := b.take(n); got[4] != 5 || got[8] != byte(cohort.Exhausted) {
		t.Errorf("native: %q", got)
	}
	if !errors.Is(b.cuts[v], cohort.Exhausted) || !errors.Is(b.cuts[l], cohort.Exhausted) {
		t.Errorf("v: %v; legacy: %v", b.cuts[v], b.cuts[l])
	}
}

// TestAWaitCostsItsOwnKeys: a wait for one key is not charged for the keys that another client has asked about before.
func TestAWaitCostsItsOwnKeys(t *testing.T) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("a key of another client ", i)
	}
	waiting := func(before func(b *bench)) int64 {
		b := newBench(testLimits)
		before(b)
		was := b.m.admission.waits
		b.send(b.dial(wire.Native), frame(1, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "k") }))
		b.send(b.dial(wire.Native), frame(1, func(f []byte) []byte { return wire.AppendBarrier(f, wire.Native, "b", 2) }))
		return b.m.admission.waits - was
	}
	alone := waiting(func(*bench) {})
	after := waiting(func(b *bench) { b.send(b.dial(wire.V), wire.AppendKeys(nil, wire.V, wire.Check, keys...)) })
	if alone <= 0 || after != alone {
		t.Errorf("two waits cost %d bytes, after a large request of another client %d", alone, after)
	}
}

// TestWaitsStayWithinTheirShare: a wait for more keys than there is room for is refused, and the client with many waits
// is cut when nothing is left for those of others, and what is open never takes more than its share.
func TestWaitsStayWithinTheirShare(t *testing.T) {
	limits := testLimits
	limits.Memory, limits.Waits = 512<<10, 1<<20
	b := newBench(limits)
	within := func(when string) {
		t.Helper()
		if b.m.admission.waits > b.m.admission.shares.waits {
			t.Fatalf("%s, waits take %d of %d bytes", when, b.m.admission.waits, b.m.admission.shares.waits)
		}
	}
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i)
	}
	c := b.dial(wire.Native)
	b.send(c, frame(1, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, keys...) }))
	within("with a large one")
	if got := b.take(c); len(got) < 9 || got[8] != byte(cohort.Exhausted) {
		t.Errorf("a wait for %d keys: %q", len(keys), got)
	}
	greedy := b.dial(wire.Native)
	for id := uint32(1); id <= 10000; id++ {
		b.send(greedy, frame(id, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "never") }))
		within("with one greedy client")
	}
	for i := range 10 {
		modest := b.dial(wire.Native)
		b.send(modest, frame(1, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "soon") }))
		if got := b.take(modest); got != "" || b.cuts[modest] != nil {
			t.Errorf("modest client %d: %q, %v", i, got, b.cuts[modest])
		}
		within("with modest ones")
	}
	if !errors.Is(b.cuts[greedy], cohort.Exhausted) {
		t.Errorf("the greedy one: %v", b.cuts[greedy])
	}
}
