// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// crowdBench has a value of 1 MiB and room for three copies of it in buffers.
func crowdBench(t *testing.T) (b *bench, get []byte, size int) {
	t.Helper()
	limits := testLimits
	limits.Memory = 16 << 20
	b = newBench(limits)
	size = 1 << 20
	b.send(b.dial(wire.Legacy), wire.AppendKeyValue(nil, wire.Legacy, wire.Set, "/model", make([]byte, size)))
	return b, wire.AppendKey(nil, wire.V, wire.Get, "/model"), size
}

// ask sends requests of clients that do not read for now.
func (b *bench) ask(n int, request []byte) []*Conn {
	crowd := make([]*Conn, n)
	for i := range crowd {
		crowd[i] = b.dial(wire.V)
	}
	for _, c := range crowd {
		b.m.Receive(c, request)
	}
	b.m.Dirty() // so that flush does not send them anything
	return crowd
}

func TestCrowdIsServedInTurn(t *testing.T) {
	b, get, size := crowdBench(t)
	ping := wire.AppendPing(nil, wire.V, 7)
	const n = 24
	crowd := b.ask(n, append(bytes.Clone(get), ping...))
	if !b.m.Queued() || len(b.cuts) != 0 || b.m.admission.out > b.m.admission.shares.out {
		t.Fatalf("queued: %v, %d cut, %d bytes of buffers", b.m.Queued(), len(b.cuts), b.m.admission.out)
	}
	gets := b.m.counts.ops[wire.Get]
	for i, c := range crowd {
		b.turn()
		for _, want := range []int{size + 8, 4} { // the value, then the answer to the ping
			if p := c.Owed(); p != want {
				t.Fatalf("client %d has %d bytes, want %d", i, p, want)
			}
			b.m.Sent(c, want)
		}
		if c.Paused() {
			t.Fatalf("client %d is still paused", i)
		}
	}
	if b.m.Queued() || b.m.admission.out > 1<<20 || b.m.admission.replies.Len() != 0 {
		t.Errorf("queued: %v, %d bytes of buffers at the end", b.m.Queued(), b.m.admission.out)
	}
	if served := b.m.counts.ops[wire.Get]; gets >= served || served != n {
		t.Errorf("%d and then %d gets were counted, want %d in the end", gets, served, n)
	}
}

// Those that hold the room without reading give way to those that wait for it; no client is cut for waiting.
func TestCrowdOutlivesSilentReaders(t *testing.T) {
	b, get, size := crowdBench(t)
	silent, waiting := []*Conn(nil), []*Conn(nil)
	for _, c := range b.ask(8, get) {
		if c.Owed() > 0 {
			silent = append(silent, c)
		} else {
			waiting = append(waiting, c)
		}
	}
	if len(silent) < 2 || len(waiting) < 2 {
		t.Fatalf("%d have the room, %d wait", len(silent), len(waiting))
	}
	reads := silent[0] // a slow one, but it reads
	for s := range 2 {
		b.pass(time.Second)
		b.m.Sent(reads, 1000)
		b.turn()
		if b.m.counts.cuts != 0 {
			t.Fatalf("%d were cut after %d s", b.m.counts.cuts, s+1)
		}
	}
	b.m.Sent(reads, 1000)
	b.pass(900 * time.Millisecond)
	b.turn()
	for i, c := range silent {
		if want := i != 0; (c.Cut() != nil) != want {
			t.Errorf("client %d: %v", i, c.Cut())
		}
	}
	for i, c := range waiting {
		b.turn()
		if p := pending(c); len(p) != size+8 {
			t.Errorf("client %d that waited has %d bytes: %v", i, len(p), c.Cut())
		}
		b.m.Sent(c, c.Owed())
	}
}

func TestCrowdForgetsWhoLeft(t *testing.T) {
	b, get, _ := crowdBench(t)
	first := b.ask(3, get) // they have the room
	for range 1000 {
		for _, c := range b.ask(3, get) {
			b.m.Close(c)
		}
		if b.m.admission.replies.Len() > 8 {
			t.Fatalf("%d are remembered", b.m.admission.replies.Len())
		}
	}
	last := b.ask(2, get)
	b.m.Close(last[0])
	for _, c := range first {
		b.m.Sent(c, c.Owed())
	}
	b.turn()
	if last[1].Owed() == 0 || b.m.Queued() {
		t.Errorf("%d bytes for the last, crowd %d", last[1].Owed(), b.m.admission.replies.Len())
	}
}

// What can never fit is refused at once.
func TestReplyThatNeverFits(t *testing.T) {
	limits := testLimits
	limits.Memory = 2 << 20
	b := newBench(limits)
	b.send(b.dial(wire.Legacy), wire.AppendKeyValue(nil, wire.Legacy, wire.Set, "/large", make([]byte, 300<<10)))
	b.send(b.dial(wire.Legacy), wire.AppendKeyValue(nil, wire.Legacy, wire.Append, "/large", make([]byte, 300<<10))) // over a quarter
	c := b.dial(wire.V)
	b.send(c, wire.AppendKey(nil, wire.V, wire.Get, "/large"))
	if !errors.Is(b.cuts[c], cohort.TooLarge) || b.m.Queued() {
		t.Errorf("cut: %v, queued: %v", b.cuts[c], b.m.Queued())
	}
}

// TestCrowdIsAdmittedInTurns: when much room becomes free at once, those who wait for it get their replies in several turns.
func TestCrowdIsAdmittedInTurns(t *testing.T) {
	limits := testLimits
	limits.Memory = 1 << 30
	b := newBench(limits)
	var keys []string
	var values [][]byte
	for i := range 1000 {
		keys, values = append(keys, fmt.Sprint("/", i)), append(values, make([]byte, 200))
	}
	writer := b.dial(wire.V)
	b.send(writer, wire.AppendMultiSet(nil, wire.V, keys, values))
	b.send(writer, wire.AppendSet(nil, wire.V, "/large", make([]byte, 8<<20)))
	silent := b.ask(40, wire.AppendKey(nil, wire.V, wire.Get, "/large"))
	crowd := b.ask(1000, wire.AppendKeys(nil, wire.V, wire.MultiGet, keys...))
	var waiting []*Conn
	for _, c := range crowd {
		if c.Owed() == 0 {
			waiting = append(waiting, c)
		}
	}
	if len(waiting) < 200 {
		t.Fatalf("%d of %d wait", len(waiting), len(crowd))
	}
	for _, c := range silent {
		b.m.Close(c)
	}
	for turns := 1; ; turns++ {
		b.m.Tick(b.m.clock.now)
		if work := b.cost(func() {
			b.m.Resume()
			b.m.Admit()
		}); work > 2*heavyWork {
			t.Fatalf("a turn took %d units of work", work)
		}
		if !b.m.Busy() {
			if turns < 5 {
				t.Errorf("all were served in %d turns", turns)
			}
			break
		}
	}
	for _, c := range waiting {
		if c.Owed() == 0 {
			t.Fatalf("one is not served: %v", c.Cut())
		}
	}
}

// TestHostsTakeTurns: hosts take turns, members keep their order, and who is gone is neither served nor kept.
func TestHostsTakeTurns(t *testing.T) {
	t.Parallel()
	gone := map[string]bool{}
	l := newFairQueue(func(s string) bool { return gone[s] })
	if _, found := l.First(); found || !l.Empty() {
		t.Fatal("a new line is not empty")
	}
	for i, m := range []string{"a1", "a2", "a3", "a4", "b1", "c1", "c2"} {
		l.Push(m, m[:1], false, int64(10+i))
	}
	l.Push("a0", "a", true, 20)
	if l.Since() != 10 || l.Len() != 8 {
		t.Errorf("since %d, %d wait", l.Since(), l.Len())
	}
	gone["b1"], gone["a2"] = true, true
	if work := l.Left("b") + l.Left("a"); work != 1 { // the only one of b is removed at once
		t.Errorf("%d units of work", work)
	}
	var served []string
	for m, found := l.First(); found; m, found = l.First() {
		served = append(served, m)
		l.Pop()
	}
	if want := []string{"a0", "c1", "a1", "c2", "a3", "a4"}; !slices.Equal(served, want) {
		t.Errorf("served %q, want %q", served, want)
	}
	if !l.Empty() || l.Len() != 0 || len(l.byName) != 0 {
		t.Errorf("%d are left", l.Len())
	}
}
