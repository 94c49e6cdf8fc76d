// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestPutOffAreServed: a request that has to wait for a turn with room is done although others have large requests done at the beginning
// of each turn, as clients do that send theirs without waiting for replies. All that wait have one turn each.
func TestPutOffAreServed(t *testing.T) {
	const greedy, askers = 10, 5
	b := newBench(workLimits)
	names := make([]string, 100)
	values := make([][]byte, len(names))
	for i := range names {
		names[i], values[i] = fmt.Sprint("/k", i), make([]byte, 3000)
	}
	b.send(b.dial(wire.V), wire.AppendMultiSet(nil, wire.V, names, values))
	var flood []byte
	for range 200 {
		flood = wire.AppendKeys(flood, wire.V, wire.MultiGet, names...)
	}
	var clients, asking []*Conn
	for range greedy {
		clients = append(clients, b.dial(wire.V))
	}
	for range askers {
		asking = append(asking, b.dial(wire.Native))
	}
	for _, c := range clients {
		b.m.Receive(c, flood)
	}
	for i, c := range asking {
		b.m.Receive(c, frame(uint32(i), func(f []byte) []byte { return wire.AppendPlain(f, wire.Native, wire.Stats) }))
	}
	answered := func() (n int) {
		for _, c := range asking {
			if c.Owed() > 0 {
				n++
			}
		}
		return n
	}
	turns := 0
	for ; turns < 100 && answered() < askers; turns++ {
		b.m.Tick(b.m.clock.now)
		for _, c := range clients { // they read all they get
			b.m.Sent(c, c.Owed())
		}
		b.m.Resume()
	}
	if turns > 2*greedy {
		t.Errorf("%d of %d were answered after %d turns", answered(), askers, turns)
	}
	for i, c := range clients {
		if c.Owed() == 0 && len(c.in.buf) > 0 && !c.Paused() {
			t.Errorf("client %d is forgotten", i)
		}
	}
}

// TestManyCallbacksShareATurn: of changes that many watchers have to be told of, one is made in a turn, whichever
// client asks for it and however the keys are changed; all are made in the end, as they were sent.
func TestManyCallbacksShareATurn(t *testing.T) {
	const watches, keys, writers = 3000, 30, 10
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("/k", i)
	}
	value := make([]byte, 2*sharedSize)
	for name, c := range map[string]struct {
		watched []string
		request []byte
	}{
		"multi_set": {names, wire.AppendMultiSet(nil, wire.V, names, make([][]byte, keys))},
		"set":       {names[:1], wire.AppendSet(nil, wire.V, names[0], value)},
		"add":       {names[:1], wire.AppendAdd(nil, wire.V, names[0], 1)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(workLimits)
			for range watches / len(c.watched) {
				watcher := b.m.Open("watcher", nil)
				for _, key := range c.watched {
					b.send(watcher, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, key))
				}
			}
			all := make([]*Conn, writers)
			for i := range all {
				all[i] = b.dial(wire.V)
			}
			b.m.Tick(b.m.clock.now)
			worst, turns := b.cost(func() {
				for _, w := range all {
					data := bytes.Clone(c.request)
					b.m.Take(w, data, cap(data))
				}
			}), 1
			for ; b.m.Busy(); turns++ {
				worst = max(worst, b.cost(func() {
					b.m.Tick(b.m.clock.now)
					b.m.Resume()
				}))
				for dirty := b.m.Dirty(); len(dirty) > 0; dirty = b.m.Dirty() {
					for _, w := range dirty {
						b.m.Sent(w, w.Owed())
					}
				}
			}
			// In a turn there may be one of those that were put off before beside one that was not.
			if one := uint64(watches * answerWork); worst > 3*one {
				t.Errorf("a turn took %d units of work, one change takes %d", worst, one)
			}
			for i, w := range all {
				if w.Cut() != nil || len(w.in.buf) > 0 {
					t.Errorf("writer %d: %d bytes are left, %v", i, len(w.in.buf), w.Cut())
				}
			}
			if e := b.m.table.Find([]byte(names[0])); e == nil || name == "set" && !bytes.Equal(e.Value(), value) ||
				name == "add" && string(e.Value()) != "10" {
				t.Errorf("the value is %v", e)
			}
		})
	}
}

// TestDeletesDuringListings: a key that goes is put into each listing that has not come to it, which is as much work as it is long.
func TestDeletesDuringListings(t *testing.T) {
	const listings, deletes = 100, 20
	b := newBench(workLimits)
	writer := b.dial(wire.V)
	for i := range 2 * sliceWork {
		b.send(writer, wire.AppendSet(nil, wire.V, fmt.Sprint("/short", i), nil))
	}
	long := make([]string, deletes)
	for i := range long {
		long[i] = fmt.Sprint("/long", i, strings.Repeat("x", 8000))
		b.send(writer, wire.AppendSet(nil, wire.V, long[i], nil))
	}
	askers, all := make([]*Conn, listings), make([]*Conn, deletes)
	for _, conns := range [][]*Conn{askers, all} {
		for i := range conns {
			conns[i] = b.dial(wire.V)
		}
	}
	for _, c := range askers {
		b.m.Receive(c, wire.AppendPlain(nil, wire.V, wire.ListKeys))
	}
	if n := b.m.table.Walks(); n != listings {
		t.Fatalf("%d listings are not complete", n)
	}
	b.m.Tick(b.m.clock.now)
	work := b.cost(func() {
		for i, key := range long {
			b.m.Receive(all[i], wire.AppendKey(nil, wire.V, wire.DeleteKey, key))
		}
	})
	one := uint64(listings * len(long[0]) / unitBytes)
	if made := b.m.counts.ops[wire.DeleteKey]; work < made*one || made*one > heavyWork {
		t.Errorf("%d deletes in one turn with %d units of work, one takes %d", made, work, one)
	}
	b.flush()
	if made := b.m.counts.ops[wire.DeleteKey]; made != deletes || b.m.table.Len() != 2*sliceWork {
		t.Errorf("%d deletes were made, %d keys are left", made, b.m.table.Len())
	}
}

// TestCallbacksOfOneRequestTakeSeveralTurns: a MULTI_SET may change a key as often as it has pairs, and all who watch
// the key are told each time. They are notified over many turns, in order; a client that changes the key or begins to
// watch it meanwhile is served after that. The values are there at once.
func TestCallbacksOfOneRequestTakeSeveralTurns(t *testing.T) {
	const watchers, pairs = 1500, 100
	b := newBench(workLimits)
	all := make([]*Conn, watchers)
	for i := range all {
		all[i] = b.m.Open("watcher", nil)
		b.send(all[i], wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "/k"))
		b.take(all[i])
	}
	keys, values := slices.Repeat([]string{"/k"}, pairs), make([][]byte, pairs)
	var want []byte
	for i := range values {
		values[i] = fmt.Append(nil, i)
		event := wire.WatchEvent{Kind: wire.KeyUpdated, Key: []byte("/k"), New: values[i]}
		if i == 0 {
			event.Kind = wire.KeyCreated
		} else {
			event.Old = values[i-1]
		}
		want = wire.AppendWatchEvent(want, event)
	}
	writer, other, late, reader := b.dial(wire.Native), b.dial(wire.V), b.m.Open("late", nil), b.dial(wire.V)
	b.m.Tick(b.m.clock.now)
	worst := b.cost(func() {
		b.m.Receive(writer, frame(1, func(f []byte) []byte { return wire.AppendMultiSet(f, wire.Native, keys, values) }))
	})
	b.m.Receive(other, wire.AppendSet(nil, wire.V, "/k", []byte("last")))
	b.m.Receive(late, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "/k"))
	b.m.Receive(reader, wire.AppendKey(nil, wire.V, wire.Get, "/k"))
	b.m.Close(all[1])
	b.deliver()
	if got := b.take(reader); got != str(strconv.Itoa(pairs-1)) {
		t.Errorf("the value is %q", got)
	}
	turns := 0
	for ; b.m.Busy(); turns++ {
		worst = max(worst, b.cost(func() {
			b.m.Tick(b.m.clock.now)
			b.m.Resume()
		}))
		b.deliver()
	}
	if worst > 4*heavyWork || turns < pairs*watchers*answerWork/(4*heavyWork) {
		t.Errorf("a turn took %d units of work, there were %d turns", worst, turns)
	}
	want = wire.AppendWatchEvent(want, wire.WatchEvent{Kind: wire.KeyUpdated, Key: []byte("/k"), Old: values[pairs-1], New: []byte("last")})
	for i, c := range all {
		if got := b.take(c); i != 1 && got != string(want) {
			t.Fatalf("watcher %d was told %d bytes, want %d", i, len(got), len(want))
		}
	}
	if got := b.take(late); got[:1] != "\x03" || len(got) > 1 && got[1:] != string(want[len(want)-(len(got)-1):]) {
		t.Errorf("who came late was told %q", got)
	}
	if b.m.admission.unsent != 0 || b.take(writer) == "" {
		t.Errorf("%d bytes are left, or the writer has no answer", b.m.admission.unsent)
	}
}

// TestCallbacksThatCannotBeKept: of more changes than the memory for replies holds, as many are told at once as have no room, and no more.
func TestCallbacksThatCannotBeKept(t *testing.T) {
	const watchers, pairs = 300, 800
	limits := workLimits
	limits.Memory = 256 << 10
	b := newBench(limits)
	for range watchers {
		b.send(b.m.Open("watcher", nil), wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "/k"))
	}
	b.deliver()
	writer := b.dial(wire.Native)
	b.m.Tick(b.m.clock.now)
	work := b.cost(func() {
		b.m.Receive(writer, frame(1, func(f []byte) []byte {
			return wire.AppendMultiSet(f, wire.Native, slices.Repeat([]string{"/k"}, pairs),
				slices.Repeat([][]byte{[]byte("value")}, pairs))
		}))
	})
	if kept, room := b.m.admission.unsent, b.m.admission.shares.out; kept > room || kept == 0 {
		t.Errorf("callbacks of %d bytes are kept, there is room for %d", kept, room)
	}
	if all := uint64(watchers * pairs * answerWork); work > all*3/4 {
		t.Errorf("%d units of work in one step, all callbacks are %d", work, all)
	}
}
