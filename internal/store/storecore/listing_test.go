// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// lister is a machine with many keys that change, and what they are.
type lister struct {
	*bench
	r    *rand.Rand
	conn *Conn
	keys map[string]struct{}
}

func newLister(seed uint64, n int) *lister {
	b := newBench(workLimits)
	l := &lister{bench: b, r: rand.New(rand.NewPCG(seed, 1)), conn: b.dial(wire.V), keys: map[string]struct{}{}}
	for i := range n {
		l.set(fmt.Sprint("/key", i))
	}
	return l
}

func (l *lister) set(key string) {
	l.m.Receive(l.conn, wire.AppendSet(nil, wire.V, key, nil))
	l.keys[key] = struct{}{}
}

func (l *lister) remove(key string) {
	l.m.Receive(l.conn, wire.AppendKey(nil, wire.V, wire.DeleteKey, key))
	delete(l.keys, key)
	l.m.Sent(l.conn, l.conn.Owed())
}

// change lets keys come and go.
func (l *lister) change(n int) {
	for range n {
		if key := fmt.Sprint("/key", l.r.IntN(30_000)); l.r.IntN(2) == 0 {
			l.remove(key)
		} else {
			l.set(key)
		}
	}
}

// listed reads the body of a listing.
func listed(t *testing.T, b []byte) []string {
	t.Helper()
	r, n, short, err := wire.ParseReply(wire.V, wire.ListKeys, 0, b, &wire.DefaultLimits)
	if err != nil || short || n != len(b) {
		t.Fatalf("%d of %d bytes, short: %v, %v", n, len(b), short, err)
	}
	var keys []string
	for _, key := range r.Values {
		keys = append(keys, string(key))
	}
	return slices.Sorted(slices.Values(keys))
}

// TestListingInParts: a long listing is made over many turns in which keys come and go, and has exactly those of the moment
// at which it was asked for.
func TestListingInParts(t *testing.T) {
	for seed := range seeds.Range(4) {
		l := newLister(seed, 20_000)
		l.change(5000) // so that entries are used again
		v, n, gone := l.dial(wire.V), l.dial(wire.Native), l.dial(wire.V)
		before := l.m.admission.out
		want := slices.Sorted(maps.Keys(l.keys))
		ask := wire.AppendPlain(nil, wire.V, wire.ListKeys)
		l.m.Receive(v, append(ask, wire.AppendPing(nil, wire.V, 7)...))
		l.m.Receive(gone, ask)
		l.change(100)
		wantNative := slices.Sorted(maps.Keys(l.keys))
		l.m.Receive(n, frame(9, func(f []byte) []byte { return wire.AppendPlain(f, wire.Native, wire.ListKeys) }))
		if !v.Paused() || !n.Paused() || v.Owed()+n.Owed() != 0 {
			t.Fatal("they were listed at once")
		}
		turns := 0
		for ; l.m.Busy(); turns++ {
			if work := l.cost(func() {
				l.m.Tick(l.m.clock.now)
				l.m.Resume()
			}); work > 2*heavyWork {
				t.Fatalf("a turn took %d units of work", work)
			}
			switch {
			case turns == 1:
				l.m.Close(gone)
			case turns == 2 && seed%4 == 0:
				for key := range maps.Clone(l.keys) { // nothing is left
					l.remove(key)
				}
			case turns == 2 && seed%4 == 1:
				l.m.table = keytable.New() // as Clear does
				clear(l.keys)
			}
			l.change(200)
		}
		if !slices.Equal(listed(t, pending(v)), want) {
			t.Errorf("seed %d: the keys of PyTorch's client are not those of the moment when it asked", seed)
		}
		if !slices.Equal(listed(t, pending(n)[wire.FrameHeader+1:]), wantNative) {
			t.Errorf("seed %d: the keys of the native client are not those of the moment when it asked", seed)
		}
		l.m.Sent(n, n.Owed())
		l.m.Sent(v, v.Owed()) // there was more than it may leave unread, so the ping had to wait
		if v.Owed() != 4 {
			t.Errorf("seed %d: the request behind the listing has %d bytes as its answer", seed, v.Owed())
		}
		l.m.Sent(v, 4)
		if turns < 3 || l.m.table.Walks()+len(l.m.listings) != 0 || l.m.admission.out > before+keepBuffer || v.Paused() || n.Paused() {
			t.Errorf("seed %d: %d turns; %d bytes are kept, before there were %d", seed, turns, l.m.admission.out, before)
		}
	}
}

func TestMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, most := range []int{1, 64, 5000, 1 << 20} {
		var s keytable.Bitset
		want := map[int]struct{}{}
		for range 2000 {
			n := r.IntN(most)
			if _, has := want[n]; has && r.IntN(2) == 0 {
				s.Remove(n)
				delete(want, n)
			} else {
				s.Add(n)
				want[n] = struct{}{}
			}
		}
		var got []int
		work := 0
		for n, looked := s.Next(0); n != keytable.NoBit; n, looked = s.Next(n + 1) {
			got = append(got, n)
			work += looked
		}
		if !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Errorf("up to %d: %d numbers, want %d", most, len(got), len(want))
		}
		if limit := 2*len(want) + most>>12 + len(want)*2; work > limit {
			t.Errorf("up to %d: %d words were looked at for %d numbers, want at most %d", most, work, len(want), limit)
		}
	}
}

// TestKeysThatGoWhileTheyAreListed: each listing that is being made may have to list a key before it goes, which is work of the request
// that deletes it: a client does not delete thousands of them in a turn.
func TestKeysThatGoWhileTheyAreListed(t *testing.T) {
	l := newLister(1, 20_000)
	const listings = 1000
	clients := make([]*Conn, listings+1)
	for i := range clients {
		clients[i] = l.dial(wire.V)
	}
	for _, c := range clients[1:] {
		l.m.Receive(c, wire.AppendPlain(nil, wire.V, wire.ListKeys))
	}
	if len(l.m.listings) != listings {
		t.Fatalf("%d listings are being made", len(l.m.listings))
	}
	var many []byte
	for i := range 1000 {
		many = wire.AppendKey(many, wire.V, wire.DeleteKey, fmt.Sprint("/key", 19_999-i))
	}
	l.m.Tick(l.m.clock.now + 1)
	deleted := l.m.counts.ops[wire.DeleteKey]
	l.m.Receive(clients[0], many)
	if deleted = l.m.counts.ops[wire.DeleteKey] - deleted; deleted > 2*sliceWork/listings {
		t.Errorf("%d keys were deleted in one turn", deleted)
	}
}
