// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// These tests count the machine's work, which does not depend on the computer: what others have done before, such as
// waiting for a key, must not make a request dearer.

var workLimits = Limits{Limits: wire.DefaultLimits, Memory: 8 << 30, Output: 64 << 20, Waits: 1 << 20}

// cost returns the work of what fn does.
func (b *bench) cost(fn func()) uint64 {
	before := b.m.Work()
	fn()
	return b.m.Work() - before
}

func TestBarrierDoesNotWalkItsWaiters(t *testing.T) {
	b := newBench(workLimits)
	const waiters = 50_000
	c, n := b.dial(wire.V), b.dial(wire.Native)
	worst := uint64(0)
	for i := range waiters {
		// Sizes that come in the worst order for a heap: each arrival wants less than all before.
		size := int64(4*waiters - i)
		worst = max(worst, b.cost(func() { b.send(c, wire.AppendBarrier(nil, wire.V, "/b", size)) }))
		worst = max(worst, b.cost(func() {
			b.send(n, frame(uint32(i), func(f []byte) []byte { return wire.AppendBarrier(f, wire.Native, "/b", size) }))
		}))
	}
	if worst > 64 {
		t.Errorf("an arrival behind up to %d others took %d units of work", 2*waiters, worst)
	}
	// Leaving is as cheap, and the right ones are let go afterwards.
	if work := b.cost(func() { b.m.Close(n) }); work > 64*waiters {
		t.Errorf("%d waiters left with %d units of work", waiters, work)
	}
	b.send(b.dial(wire.V), wire.AppendSet(nil, wire.V, "/b", []byte(strconv.Itoa(3*waiters+9))))
	if got := b.take(c); len(got) != 0 {
		t.Fatalf("%d were let go by a set", len(got))
	}
	b.send(b.dial(wire.V), wire.AppendBarrier(nil, wire.V, "/b", 1))
	if got := b.take(c); len(got) != 10 { // those that wanted 3*waiters+1 to 3*waiters+10
		t.Errorf("%d were let go", len(got))
	}
}

func TestWaitsAreNotScannedAgain(t *testing.T) {
	b := newBench(workLimits)
	const waits, keys = 40, 2_000
	var names []string
	for i := range keys {
		names = append(names, fmt.Sprint("/k", i))
	}
	writer := b.dial(wire.V)
	values := make([][]byte, keys-2)
	b.send(writer, wire.AppendMultiSet(nil, wire.V, names[2:], values))
	c := b.dial(wire.Native)
	for i := range waits {
		for j, op := range []wire.Op{wire.Wait, wire.MultiGet} {
			b.send(c, frame(uint32(2*i+j), func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, op, names...) }))
		}
	}
	// All keys but two are there. One of the two comes and goes, then the other.
	toggle := func(key string) {
		b.send(writer, wire.AppendSet(nil, wire.V, key, nil))
		b.send(writer, wire.AppendKey(nil, wire.V, wire.DeleteKey, key))
	}
	for _, key := range []string{names[0], names[1], names[7]} {
		if work := b.cost(func() { toggle(key) }); work > 2*2*waits+64 {
			t.Errorf("%s came and went before %d waits of %d keys: %d units of work", key, 2*waits, keys, work)
		}
		b.send(writer, wire.AppendSet(nil, wire.V, names[7], nil))
	}
	if len(b.take(c)) != 0 {
		t.Fatal("a wait is over although two keys are missing")
	}
	b.send(writer, wire.AppendMultiSet(nil, wire.V, names[:2], values[:2]))
	if got, want := len(b.take(c)), waits*(10+9+8*keys); got != want || b.m.waits.n != 0 {
		t.Errorf("%d bytes, want %d; %d waits are left", got, want, b.m.waits.n)
	}
}

func TestQueuesDoNotWalkWaits(t *testing.T) {
	b := newBench(workLimits)
	const waits = 50_000
	v, n, p := b.dial(wire.V), b.dial(wire.Native), b.dial(wire.Native)
	for i := range waits {
		b.send(n, frame(uint32(i), func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "/q") }))
		b.send(v, wire.AppendKeys(nil, wire.V, wire.Wait, "/q"))
	}
	push := func() {
		b.send(v, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", []byte("x")))
	}
	b.send(p, frame(1, func(f []byte) []byte { return wire.AppendQueuePop(f, "/q", true) }))
	if work := b.cost(push); work > 64 || b.take(p) == "" {
		t.Errorf("a pop behind %d waits took %d units of work", 2*waits, work)
	}
	if work := b.cost(push); work > 64 || b.take(v) != "\x00" { // one of the PyTorch clients hears of it
		t.Errorf("a push before %d waits took %d units of work", 2*waits, work)
	}
	if work := b.cost(func() {
		b.send(p, frame(2, func(f []byte) []byte { return wire.AppendQueuePop(f, "/q", false) }))
	}); work > 64 {
		t.Errorf("a pop took %d units of work", work)
	}
	// And a value does not walk the pops.
	for i := range waits {
		b.send(p, frame(uint32(i+9), func(f []byte) []byte { return wire.AppendQueuePop(f, "/only-pops", true) }))
	}
	if work := b.cost(func() { b.send(v, wire.AppendSet(nil, wire.V, "/only-pops", nil)) }); work > 64 {
		t.Errorf("a set before %d pops took %d units of work", waits, work)
	}
}

func TestListingOverTheLimitIsNotMade(t *testing.T) {
	limits := workLimits
	limits.Output = 1 << 20
	b := newBench(limits)
	c, n := b.dial(wire.V), b.dial(wire.Native)
	for i := range 100_000 {
		b.send(c, wire.AppendSet(nil, wire.V, fmt.Sprint("/key", i), nil))
	}
	list := func(id uint32) []byte {
		return frame(id, func(f []byte) []byte { return wire.AppendPlain(f, wire.Native, wire.ListKeys) })
	}
	if work := b.cost(func() {
		for i := range 1000 {
			b.send(n, list(uint32(i)))
		}
	}); work > 1000*64 {
		t.Errorf("1000 listings that were refused took %d units of work", work)
	}
	b.take(n)
	// What fits is made once, however long it has to wait for room.
	limits.Output, limits.Memory = 64<<20, 64<<20
	b = newBench(limits)
	c = b.dial(wire.V)
	for i := range 100_000 {
		b.send(c, wire.AppendSet(nil, wire.V, fmt.Sprint("/key", i), nil))
	}
	silent := b.ask(64, wire.AppendPlain(nil, wire.V, wire.ListKeys))
	for range 1000 {
		b.turn()
	}
	if !b.m.Queued() {
		t.Fatal("all listings have room")
	}
	if work := b.cost(func() {
		for range 1000 {
			b.turn()
		}
	}); work > 1000*64 {
		t.Errorf("1000 turns with %d listings that wait took %d units of work", len(silent), work)
	}
	// A table that has shrunk is listed at the cost of what it has now.
	b = newBench(workLimits)
	c = b.dial(wire.V)
	for i := range 100_000 {
		b.send(c, wire.AppendSet(nil, wire.V, fmt.Sprint("/key", i), nil))
	}
	for i := range 99_990 {
		b.send(c, wire.AppendKey(nil, wire.V, wire.DeleteKey, fmt.Sprint("/key", i)))
	}
	b.take(c)
	if work := b.cost(func() { b.send(c, wire.AppendPlain(nil, wire.V, wire.ListKeys)) }); work > 10_000 {
		t.Errorf("ten keys of once many are listed with %d units of work", work)
	}
}

func TestSnapshotDoesNotWalkAllWaits(t *testing.T) {
	b := newBench(workLimits)
	c := b.dial(wire.V)
	for i := range 100_000 {
		b.m.Tick(int64(i))
		b.send(c, wire.AppendKeys(nil, wire.V, wire.Wait, "/k"))
	}
	var s Snapshot
	if work := b.cost(func() { s = b.m.Snapshot(100) }); work > 100*lookedAt || len(s.Waiters) != 100 || s.NWaits != 100_000 {
		t.Errorf("%d of %d waiters took %d units of work", len(s.Waiters), s.NWaits, work)
	}
	for i, w := range s.Waiters {
		if w.Since != int64(i) {
			t.Fatalf("waiter %d waits since %d: not the oldest", i, w.Since)
		}
	}
	// A wait for many keys that are there but one does not hide it behind a long search.
	n, names := b.dial(wire.Native), []string{"/missing"}
	for i := range 10_000 {
		names = append(names, fmt.Sprint("/there", i))
	}
	b.m.Close(c)
	b.send(b.dial(wire.V), wire.AppendMultiSet(nil, wire.V, names[1:], make([][]byte, len(names)-1)))
	b.send(n, frame(1, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, names...) }))
	if s = b.m.Snapshot(100); len(s.Waiters) != 1 || s.Waiters[0].Key != "/missing" {
		t.Errorf("waiters %+v", s.Waiters)
	}
}

// A client that asks for as much as it can has its turn, not that of others: after each of its slices a ping is answered.
func TestTurnsAreShort(t *testing.T) {
	const slack = 2 * sliceWork
	b := newBench(workLimits)
	set := b.dial(wire.V)
	b.send(set, wire.AppendSet(nil, wire.V, "/value", make([]byte, 100<<10)))
	b.send(set, wire.AppendSet(nil, wire.V, "/large", make([]byte, 8<<20)))
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("/k", i)
	}
	b.send(set, wire.AppendMultiSet(nil, wire.V, names, make([][]byte, len(names))))
	for name, request := range map[string][]byte{
		"get":         wire.AppendKey(nil, wire.V, wire.Get, "/value"),
		"large get":   wire.AppendKey(nil, wire.V, wire.Get, "/large"),
		"compare_set": wire.AppendCompareSet(nil, wire.V, "/value", []byte("x"), nil),
		"list_keys":   wire.AppendPlain(nil, wire.V, wire.ListKeys),
		"check":       wire.AppendKeys(nil, wire.V, wire.Check, names...),
		"multi_get":   wire.AppendKeys(nil, wire.V, wire.MultiGet, names...),
		"multi_set":   wire.AppendMultiSet(nil, wire.V, names, make([][]byte, len(names))),
		"ping":        wire.AppendPing(nil, wire.V, 1),
		"append":      wire.AppendKeyValue(nil, wire.V, wire.Append, "/appended", []byte("x")),
	} {
		var flood []byte
		for len(flood) < 64<<10 {
			flood = append(flood, request...)
		}
		greedy := make([]*Conn, 8)
		for i := range greedy {
			greedy[i] = b.dial(wire.V)
		}
		honest := b.dial(wire.V)
		work := b.cost(func() {
			for _, c := range greedy {
				b.m.Receive(c, flood)
			}
		})
		if most := uint64(len(greedy)*slack + heavyWork + 8<<20/unitBytes + 64<<10); work > most {
			t.Errorf("%s: the first turn of %d clients took %d units of work, want at most %d", name, len(greedy), work, most)
		}
		for turns := 0; turns < 60 && (b.m.Busy() || turns < 10); turns++ {
			work := b.cost(func() {
				b.m.Tick(b.m.clock.now)
				b.m.Resume()
				for _, c := range greedy { // they read all they get, in pieces
					if n := c.Owed(); n > 0 {
						b.m.Sent(c, min(n, highWater))
					}
				}
			})
			if most := uint64(2*heavyWork + 2*8<<20/unitBytes + len(greedy)*slack + 64<<10); work > most {
				t.Fatalf("%s: a turn took %d units of work, want at most %d", name, work, most)
			}
			b.m.Receive(honest, wire.AppendPing(nil, wire.V, 7))
			if p := pending(honest); len(p) != 4 {
				t.Fatalf("%s: the ping of another client is not answered", name)
			}
			b.m.Sent(honest, 4)
		}
		for _, c := range append(greedy, honest) {
			if c.Cut() != nil {
				t.Errorf("%s: cut: %v", name, c.Cut())
			}
			b.m.Close(c)
		}
	}
}

// TestSliceOfATurn: one that has sent thousands of requests has a slice of each turn for them and not more, by the machine's count of
// its work. Another client finds the effect of exactly those slices, and in the end all requests were applied, in their order.
func TestSliceOfATurn(t *testing.T) {
	const requests = 10 * sliceWork
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprint("/k", i)
	}
	for name, request := range map[string]func(b []byte, i int) []byte{
		"set": func(b []byte, i int) []byte { return wire.AppendSet(b, wire.V, "/k0", []byte(strconv.Itoa(i))) },
		"multi_set": func(b []byte, i int) []byte {
			values := make([][]byte, len(names))
			values[0] = []byte(strconv.Itoa(i))
			return wire.AppendMultiSet(b, wire.V, names, values)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(workLimits)
			greedy, honest := b.dial(wire.V), b.dial(wire.V)
			one := b.cost(func() { b.m.Receive(greedy, request(nil, 0)) })
			count := requests / int(one)
			var flood []byte
			for i := range count {
				flood = append(flood, request(nil, i+1)...)
			}
			done := func() int {
				b.m.Receive(honest, wire.AppendKey(nil, wire.V, wire.Get, "/k0"))
				reply := pending(honest)
				b.m.Sent(honest, len(reply))
				n, err := strconv.Atoi(strings.TrimPrefix(string(reply), string(wire.AppendInt(nil, int64(len(reply)-8)))))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := 0
			slice := func(what string, fn func()) {
				work, now := b.cost(fn), done()
				// What is left is moved once in each slice, which counts as well.
				if most := sliceWork + 2*one + uint64(len(flood))/unitBytes; work > most || now <= before {
					t.Fatalf("%s: %d units of work for requests %d to %d, want at most %d", what, work, before, now, most)
				}
				before = now
			}
			slice("when they come", func() { b.m.Receive(greedy, flood) })
			for b.m.Busy() {
				slice("a turn", func() {
					b.m.Tick(b.m.clock.now)
					b.m.Resume()
				})
			}
			if before != count || greedy.Cut() != nil {
				t.Errorf("%d of %d requests were applied; cut: %v", before, count, greedy.Cut())
			}
		})
	}
}

// What lets thousands go is over for its sender at once: they are answered in turns of bounded work, in their order, and others
// are served in between.
func TestManyAreWokenInTurns(t *testing.T) {
	const waiters = 20_000
	wait := func(f []byte, d wire.Dialect, size int64) []byte {
		if size > 0 {
			return wire.AppendBarrier(f, d, "/k", size)
		}
		return wire.AppendKeys(f, d, wire.Wait, "/k")
	}
	for name, size := range map[string]int64{"set": 0, "barrier": 2*waiters + 1} {
		t.Run(name, func(t *testing.T) {
			b := newBench(workLimits)
			crowd := make([]*Conn, 0, 2*waiters)
			for range waiters {
				v, n := b.dial(wire.V), b.dial(wire.Native)
				b.m.Receive(v, wait(nil, wire.V, size))
				b.m.Receive(n, frame(7, func(f []byte) []byte { return wait(f, wire.Native, size) }))
				crowd = append(crowd, v, n)
			}
			last, other := b.dial(wire.V), b.dial(wire.V)
			b.m.Dirty()
			release := wire.AppendSet(nil, wire.V, "/k", nil)
			if size > 0 {
				release = wire.AppendBarrier(nil, wire.V, "/k", size)
			}
			b.m.Receive(last, release)
			answered := len(b.m.Dirty())
			if !b.m.Busy() || answered > sliceWork/answerWork+2 {
				t.Fatalf("%d were answered at once, busy: %v", answered, b.m.Busy())
			}
			// The key is gone again before most of them have heard of it: they hear of it nevertheless.
			b.m.Receive(last, wire.AppendKey(nil, wire.V, wire.DeleteKey, "/k"))
			turns := 0
			for ; b.m.Busy(); turns++ {
				if work := b.cost(func() {
					b.m.Tick(b.m.clock.now)
					b.m.Resume()
				}); work > 2*heavyWork {
					t.Fatalf("a turn took %d units of work", work)
				}
				b.m.Receive(other, wire.AppendPing(nil, wire.V, 1))
				if other.Owed() != 4 {
					t.Fatal("another client waits")
				}
				b.m.Sent(other, 4)
			}
			for i, c := range crowd {
				if c.Owed() != 1 && c.Owed() != 10 {
					t.Fatalf("client %d was sent %d bytes", i, c.Owed())
				}
			}
			if turns < 5 || b.m.waits.n != 0 || cap(b.m.waits.ready) > sliceWork {
				t.Errorf("%d turns, %d waits are left, room for %d is kept", turns, b.m.waits.n, cap(b.m.waits.ready))
			}
		})
	}
}

// TestStatsAreBelowATurn: an answer to STATS costs no more than the large requests of one turn, however many clients wait or poll, how
// long their keys and names are, and how often it is asked for.
func TestStatsAreBelowATurn(t *testing.T) {
	b := newBench(workLimits)
	var pollers []*Conn
	made := 0
	b.m.config.Stats = func() []byte {
		made++
		s := b.m.Snapshot(1000)
		if shown := shownBytes(s.Pollers); len(s.Pollers) == 0 || shown > shownText/4 {
			t.Errorf("%d pollers with %d bytes", len(s.Pollers), shown)
		}
		text, err := json.Marshal(map[string]any{"waits": s.Waiters, "polls": s.Pollers, "claims": b.m.ShownClaims(1000)})
		if err != nil {
			t.Error(err)
		}
		return text
	}
	unprinted := func(n int) string { return strings.Repeat("\x01", n) }
	for i := range 100 {
		c := b.dial(wire.Native)
		for j := range 20 {
			b.send(c, frame(uint32(j), func(f []byte) []byte {
				return wire.AppendCompareSet(f, wire.Native, fmt.Sprint(wire.ClaimPrefix, i, "/", j, unprinted(200)), nil,
					[]byte(unprinted(maxClaimText)))
			}))
		}
		for j := range 30 {
			b.send(c, frame(uint32(100+j), func(f []byte) []byte {
				return wire.AppendKeys(f, wire.Native, wire.Wait, fmt.Sprint("/", i, j, unprinted(1000)), "/other", fmt.Sprint("/", j))
			}))
		}
	}
	for i := range lookedAt * 1000 {
		c := b.dial(wire.Native)
		if i%40 != 0 {
			continue
		}
		b.send(c, frame(1, func(f []byte) []byte {
			return wire.AppendCompareSet(f, wire.Native, fmt.Sprint(wire.ClaimPrefix, "poller", i), nil, []byte(unprinted(maxClaimText)))
		}))
		pollers = append(pollers, c)
	}
	for range 4 {
		b.m.Tick(b.m.clock.now + int64(time.Second))
		for _, c := range pollers {
			b.send(c, frame(2, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Check, "/"+unprinted(200)) }))
		}
	}
	asker := b.dial(wire.Native)
	ask := func(id uint32) []byte {
		return frame(id, func(f []byte) []byte { return wire.AppendPlain(f, wire.Native, wire.Stats) })
	}
	b.m.Tick(b.m.clock.now + 1)
	if work := b.cost(func() { b.m.Receive(asker, ask(1)) }); work > statsWork || made != 1 || asker.Owed() == 0 {
		t.Errorf("%d units of work, the bound is %d; it was made %d times, %d bytes", work, statsWork, made, asker.Owed())
	}
	t.Logf("an answer has %d bytes", asker.Owed())
	b.flush()
	var many []byte
	for i := range 1000 {
		many = append(many, ask(uint32(10+i))...)
	}
	b.m.Tick(b.m.clock.now + 1)
	made = 0
	if work := b.cost(func() { b.m.Receive(asker, many) }); work > statsWork+sliceWork || made != 1 {
		t.Errorf("a thousand in one turn: %d units of work, made %d times", work, made)
	}
	b.m.Close(asker)
	// A turn that has done much already leaves it to the next one.
	other := b.dial(wire.Native)
	b.m.Tick(b.m.clock.now + 1)
	b.m.turn.heavy, made = heavyWork-statsWork+1, 0
	b.m.Receive(other, ask(1))
	if made != 0 || other.Owed() != 0 || !b.m.Busy() {
		t.Errorf("in a turn that is full: made %d times, %d bytes", made, other.Owed())
	}
	b.m.Tick(b.m.clock.now + 1)
	b.m.Resume()
	if made != 1 || other.Owed() == 0 {
		t.Errorf("in the next turn: made %d times, %d bytes", made, other.Owed())
	}
}

// shownBytes is how many bytes of text pollers have.
func shownBytes(pollers []poller) (n int) {
	for _, p := range pollers {
		n += len(p.Key) + len(p.Answer) + len(p.Peer) + len(p.Name)
	}
	return n
}

// TestCallbacksAreWork: a change of a key that many watch costs one reply for each of them, whatever is in it, so that few such changes
// are made in a turn.
func TestCallbacksAreWork(t *testing.T) {
	b := newBench(workLimits)
	var watchers []*Conn
	for range 4 * sliceWork / answerWork {
		c := b.m.Open("watcher", nil)
		b.send(c, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "/watched"))
		watchers = append(watchers, c)
	}
	writer := b.dial(wire.V)
	const sets = 200
	var many []byte
	for range sets {
		many = wire.AppendSet(many, wire.V, "/watched", []byte("v"))
	}
	b.m.Receive(writer, many)
	if made := b.m.counts.ops[wire.Set]; made > 2 || !b.m.Busy() {
		t.Errorf("%d changes were made in one turn", made)
	}
	b.flush()
	if made := b.m.counts.ops[wire.Set]; made != sets {
		t.Errorf("%d changes were made in the end", made)
	}
	b.take(watchers[0])
	large := make([]byte, 64<<10)
	b.send(writer, wire.AppendSet(nil, wire.V, "/watched", large))
	request := wire.AppendSet(nil, wire.V, "/watched", large)
	most := uint64(4*len(request)/unitBytes + len(watchers)*(answerWork+1))
	if work := b.cost(func() { b.m.Receive(writer, request) }); work > most {
		t.Errorf("a change of a large value took %d units of work, %d are enough", work, most)
	}
	b.flush()
	want := string(wire.AppendWatchEvent(nil, wire.WatchEvent{
		Kind: wire.KeyUpdated, Key: []byte("/watched"), Old: []byte("v"),
		New: large,
	})) +
		string(wire.AppendWatchEvent(nil, wire.WatchEvent{Kind: wire.KeyUpdated, Key: []byte("/watched"), Old: large, New: large}))
	for i, c := range watchers {
		if got := b.take(c); i == 0 && got != want {
			t.Errorf("a watcher was told %d bytes, want %d", len(got), len(want))
		}
	}
}
