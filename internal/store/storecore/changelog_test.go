// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

var errFull = cohort.New("test", cohort.Exhausted, "no room")

// Nothing is answered or seen before it is committed, and a client sees what it has written.
func TestCommandsComeFirst(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	writer, reader := b.dial(wire.V), b.dial(wire.V)
	b.m.Receive(writer, wire.AppendSet(nil, wire.V, "k", []byte("v")))
	b.m.Receive(writer, wire.AppendAdd(nil, wire.V, "n", 1))
	b.m.Receive(writer, wire.AppendKey(nil, wire.V, wire.Get, "k"))
	b.m.Receive(reader, wire.AppendKeys(nil, wire.V, wire.Check, "k"))
	b.deliver()
	if got := b.take(writer) + b.take(reader); got != "\x01" || !writer.Paused() {
		t.Fatalf("before it is committed: % x, paused %v", got, writer.Paused())
	}
	b.flush()
	if got := b.take(writer); got != num(1)+str("v") || len(b.log) != 2 {
		t.Errorf("got % x, %d commands", got, len(b.log))
	}
}

// A client of PyTorch whose command is not logged is cut, and what it has sent after that is not logged either. A native one is told.
func TestAbort(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	torch, native := b.dial(wire.V), b.dial(wire.Native)
	b.m.Receive(torch, wire.AppendSet(nil, wire.V, "first", []byte("v")))
	b.m.Receive(native, frame(1, func(f []byte) []byte { return wire.AppendSet(f, wire.Native, "other", nil) }))
	first := b.m.Commands()
	b.m.Receive(torch, wire.AppendSet(nil, wire.V, "second", []byte("v")))
	b.m.Abort(first, errFull)
	b.flush()
	if b.cuts[torch] == nil || len(b.log) != 0 || b.m.table.Len() != 0 {
		t.Errorf("cut: %v, %d commands, %d keys", b.cuts[torch], len(b.log), b.m.table.Len())
	}
	if got, want := b.take(native), reply(1, byte(cohort.Exhausted), []byte(errFull.Error())); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if b.m.log.flying != 0 || b.m.admission.logged != 0 {
		t.Errorf("%d are under way", b.m.log.flying)
	}
}

// The end of a claim is logged sooner or later, and an item whose pop is not logged is for others.
func TestAbortOfInternalCommands(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	holder, popper, waiter := b.dial(wire.Native), b.dial(wire.Native), b.dial(wire.V)
	b.send(holder, frame(1, func(f []byte) []byte {
		return wire.AppendCompareSet(f, wire.Native, wire.ClaimPrefix+"rank/0", nil, []byte("me"))
	}))
	b.m.Close(holder)
	b.m.Abort(b.m.Commands(), errFull)
	if b.commit(); b.m.Claims()["rank/0"].Held {
		t.Error("the claim is held by a connection that has ended")
	}
	b.send(popper, frame(2, func(f []byte) []byte { return wire.AppendQueuePop(f, "q", true) }))
	b.send(waiter, wire.AppendKeys(nil, wire.V, wire.Wait, "q"))
	b.m.Receive(b.dial(wire.V), wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "q", []byte("item")))
	k := b.m.Commands()
	b.m.Commit([]Entry{{Index: 9, Data: k[0].Data, Local: k[0]}})
	if b.deliver(); b.take(waiter) != "" {
		t.Error("one who waits for the key is told of an item that is for another one")
	}
	b.m.Abort(b.m.Commands(), errFull)
	if b.flush(); b.take(popper) == "" || b.take(waiter) != "\x00" || b.m.queues.byKey["q"].len() != 1 {
		t.Errorf("after the pop was refused: %d items", b.m.queues.byKey["q"].len())
	}
}

// With a barrier reads wait until it is confirmed that nothing newer was acknowledged elsewhere.
func TestReadBarrier(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	b.m.config.Barrier = true
	c := b.dial(wire.V)
	ask := wire.AppendKeys(nil, wire.V, wire.Check, "k")
	b.send(c, append(ask, ask...))
	round := b.m.Reads()
	if got := b.take(c); got != "" || round != 1 || b.m.Reads() != 0 {
		t.Fatalf("% x, round %d", got, round)
	}
	b.m.Confirm(round, nil)
	if b.flush(); b.take(c) != "\x01\x01" || b.m.Reads() != 0 {
		t.Error("what was sent before is not answered in one round")
	}
	b.send(c, ask)
	if round = b.m.Reads(); round != 2 {
		t.Fatalf("what is sent later has round %d", round)
	}
	b.m.Confirm(round, errFull)
	if b.flush(); b.cuts[c] == nil {
		t.Error("it was not cut")
	}
}

// A machine that shares its log with others cuts a client whose session may go on at another one, and logs what no client has asked for
// when it leads again.
func TestFollow(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	b.m.config.Barrier = true
	c, _ := b.reopen(testSession, 1, 1)
	b.m.Receive(c, withNumber(2, 1, 1, 0, addOne("/n")))
	b.m.Follow()
	b.m.Abort(b.m.Commands(), cohort.New("test", cohort.Unavailable, "another one leads"))
	b.deliver()
	if b.cuts[c] == nil || b.take(c) != "" {
		t.Errorf("cut: %v", b.cuts[c])
	}
	b.m.Tick(2 * sessionGrace)
	if b.m.endAway(sessionGrace) {
		t.Error("a session ends at a machine that does not know its connection")
	}
	b.m.Abort(b.m.Commands(), errFull) // the claims of the connection
	if n := len(b.m.Commands()); n != 0 || b.m.log.flying != 0 {
		t.Errorf("%d commands, %d under way", n, b.m.log.flying)
	}
	b.m.Lead()
	if b.m.endAway(sessionGrace) || len(b.m.log.gathered) != 1 {
		t.Errorf("a client has no time to come back, or %d commands were kept", len(b.m.log.gathered))
	}
	b.flush()
	c, code := b.reopen(testSession, 2, 1)
	b.send(c, withNumber(2, 1, 1, 0, addOne("/n")))
	if got := b.take(c); code != 0 || got != reply(2, 0, []byte(num(1))) {
		t.Errorf("%v, %q", code, got)
	}
}
