// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
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
	if !b.m.Crowded() || len(b.cuts) != 0 || b.m.bufferBytes > b.m.limits.Memory/bufferShare+1<<20 {
		t.Fatalf("crowded: %v, %d cut, %d bytes of buffers", b.m.Crowded(), len(b.cuts), b.m.bufferBytes)
	}
	gets := b.m.ops[wire.Get]
	for i, c := range crowd {
		b.m.Admit(time.Minute)
		for _, want := range []int{size + 8, 4} { // the value, then the answer to the ping
			if p := len(c.Pending()); p != want {
				t.Fatalf("client %d has %d bytes, want %d", i, p, want)
			}
			b.m.Sent(c, want)
		}
		if c.Paused() {
			t.Fatalf("client %d is still paused", i)
		}
	}
	if b.m.Crowded() || b.m.bufferBytes > 1<<20 || b.m.crowd != nil {
		t.Errorf("crowded: %v, %d bytes of buffers at the end", b.m.Crowded(), b.m.bufferBytes)
	}
	if served := b.m.ops[wire.Get]; gets >= served || served != n {
		t.Errorf("%d and then %d gets were counted, want %d in the end", gets, served, n)
	}
}

func TestCrowdDoesNotWaitForEver(t *testing.T) {
	b, get, _ := crowdBench(t)
	var held []*Conn
	for _, c := range b.ask(6, get) {
		if len(c.Pending()) == 0 {
			held = append(held, c)
		}
	}
	b.m.Tick(int64(time.Minute))
	late := b.ask(1, get)[0]
	if b.m.Admit(time.Minute); len(held) == 0 || b.m.cuts != 0 {
		t.Fatalf("%d of %d were cut too early", b.m.cuts, len(held))
	}
	b.m.Tick(int64(time.Minute) + 1)
	b.m.Admit(time.Minute)
	for _, c := range held {
		if !errors.Is(c.Cut(), dist.Exhausted) {
			t.Errorf("cut: %v", c.Cut())
		}
	}
	if late.Cut() != nil || !late.Paused() || !b.m.Crowded() {
		t.Errorf("who came later: cut %v, paused %v", late.Cut(), late.Paused())
	}
}

func TestCrowdForgetsWhoLeft(t *testing.T) {
	b, get, _ := crowdBench(t)
	first := b.ask(3, get) // they have the room
	for range 1000 {
		for _, c := range b.ask(3, get) {
			b.m.Close(c)
		}
		if len(b.m.crowd) > 8 {
			t.Fatalf("%d are remembered", len(b.m.crowd))
		}
	}
	last := b.ask(2, get)
	b.m.Close(last[0])
	for _, c := range first {
		b.m.Sent(c, len(c.Pending()))
	}
	b.m.Admit(time.Minute)
	if len(last[1].Pending()) == 0 || b.m.Crowded() || b.m.crowdGone != 0 {
		t.Errorf("%d bytes for the last, crowd %d, %d left", len(last[1].Pending()), len(b.m.crowd), b.m.crowdGone)
	}
}

// What can never fit is refused at once.
func TestReplyThatNeverFits(t *testing.T) {
	limits := testLimits
	limits.Memory = 2 << 20
	b := newBench(limits)
	b.send(b.dial(wire.Legacy), wire.AppendKeyValue(nil, wire.Legacy, wire.Set, "/large", make([]byte, 300<<10)))
	for range 1 { // and another, so that the value is over a quarter
		b.send(b.dial(wire.Legacy), wire.AppendKeyValue(nil, wire.Legacy, wire.Append, "/large", make([]byte, 300<<10)))
	}
	c := b.dial(wire.V)
	b.send(c, wire.AppendKey(nil, wire.V, wire.Get, "/large"))
	if !errors.Is(b.cuts[c], dist.Exhausted) || b.m.Crowded() {
		t.Errorf("cut: %v, crowded: %v", b.cuts[c], b.m.Crowded())
	}
}
