// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

var testSession = sessionID([]byte("session-0000-one"))

// eachBench runs a test with a store in memory, and with one that has a log.
func eachBench(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, newBench(testLimits)) })
	t.Run("log", func(t *testing.T) { test(t, newLoggedBench(testLimits)) })
}

// reopen opens a session over a new connection, and returns the connection and the status.
func (b *bench) reopen(id sessionID, generation, ack uint64) (*Conn, cohort.Code) {
	c := b.dial(wire.Native)
	b.send(c, frame(1, func(b []byte) []byte { return wire.AppendSession(b, id, id, generation, ack) }))
	return c, cohort.Code(b.take(c)[wire.FrameHeader])
}

// withNumber is a numbered request in a frame.
func withNumber(id uint32, seq, ack uint64, sub uint32, write func([]byte) []byte) []byte {
	return frame(id, func(b []byte) []byte { return write(wire.AppendNumbered(b, seq, ack, sub)) })
}

func addOne(key string) func([]byte) []byte {
	return func(b []byte) []byte { return wire.AppendAdd(b, wire.Native, key, 1) }
}

// TestSessionAppliesOnce: what is sent again over another connection gets the answer of the first time, and is not applied again.
func TestSessionAppliesOnce(t *testing.T) { eachBench(t, testSessionAppliesOnce) }

func testSessionAppliesOnce(t *testing.T, b *bench) {
	t.Helper()
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, withNumber(7, 1, 1, 0, addOne("/n")))
	if got := b.take(c); got != reply(7, 0, []byte(num(1))) {
		t.Fatalf("%q", got)
	}
	big := strings.Repeat("v", 100<<10)
	b.send(c, withNumber(8, 2, 1, 0, func(b []byte) []byte {
		return wire.AppendKeyValue(b, wire.Native, wire.QueuePush, "/q", []byte(big))
	}))
	b.send(c, withNumber(9, 3, 1, 0, func(b []byte) []byte { return wire.AppendQueuePop(b, "/q", true) }))
	b.take(c)
	b.m.Close(c)
	c, code := b.reopen(testSession, 2, 1)
	if code != 0 {
		t.Fatal(code)
	}
	b.send(c, withNumber(17, 1, 1, 0, addOne("/n")))
	b.send(c, withNumber(19, 3, 1, 0, func(b []byte) []byte { return wire.AppendQueuePop(b, "/q", true) }))
	if got := b.take(c); got != reply(17, 0, []byte(num(1)))+reply(19, 0, []byte(num(1)+str(big))) {
		t.Fatalf("%.80q", got)
	}
	b.send(c, withNumber(20, 4, 4, 0, addOne("/n")))
	if got := b.take(c); got != reply(20, 0, []byte(num(2))) {
		t.Fatalf("%q", got)
	}
	b.send(c, withNumber(21, 2, 4, 0, addOne("/n"))) // a late one
	if got := b.take(c); cohort.Code(got[wire.FrameHeader]) != cohort.Aborted {
		t.Fatalf("%q", got)
	}
	b.send(c, frame(22, func(b []byte) []byte { return wire.AppendAcked(b, 3) }))
	if n := b.m.sessions.bytes - b.m.sessions.byID[testSession].ringSize(); n != sessionCost {
		t.Errorf("%d bytes are counted when all is acknowledged, want %d", n, sessionCost)
	}
}

// TestSessionGenerations: the older connection of a session is cut, and an older generation is refused.
func TestSessionGenerations(t *testing.T) { eachBench(t, testSessionGenerations) }

func testSessionGenerations(t *testing.T, b *bench) {
	t.Helper()
	first, _ := b.reopen(testSession, 1, 1)
	second, code := b.reopen(testSession, 2, 1)
	if code != 0 || b.cuts[first] == nil || b.cuts[second] != nil {
		t.Errorf("%v, cuts %v", code, b.cuts)
	}
	if _, code = b.reopen(testSession, 2, 1); code != cohort.Aborted {
		t.Errorf("the same generation: %v", code)
	}
	if _, code = b.reopen(sessionID([]byte("session-0000-two")), 3, 1); code != cohort.NotFound {
		t.Errorf("an unknown session: %v", code)
	}
	c := b.dial(wire.Native)
	b.send(c, frame(1, func(b []byte) []byte {
		return wire.AppendSession(b, testSession, sessionID([]byte("another-token-00")), 3, 1)
	}))
	if got := b.take(c); cohort.Code(got[wire.FrameHeader]) != cohort.InvalidArgument {
		t.Errorf("another token: %q", got)
	}
	b.send(c, withNumber(2, 1, 1, 0, addOne("/n")))
	if got := b.take(c); cohort.Code(got[wire.FrameHeader]) != cohort.PeerLost {
		t.Errorf("a number without a session: %q", got)
	}
}

// TestSessionBarrier: an arrival is counted once, and is let go by a barrier that was full, and deleted, while it was away.
func TestSessionBarrier(t *testing.T) { eachBench(t, testSessionBarrier) }

func testSessionBarrier(t *testing.T, b *bench) {
	t.Helper()
	arrive := func(b []byte) []byte { return wire.AppendBarrier(b, wire.Native, "/b", 2) }
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, withNumber(2, 1, 1, 0, arrive))
	c, _ = b.reopen(testSession, 2, 1)
	b.send(c, withNumber(3, 1, 1, 0, arrive))
	if got := b.take(c); got != "" {
		t.Fatalf("%q", got)
	}
	b.m.Close(c)
	other := b.dial(wire.V)
	b.send(other, wire.AppendBarrier(nil, wire.V, "/b", 2))
	b.send(other, wire.AppendKey(nil, wire.V, wire.DeleteKey, "/b"))
	c, _ = b.reopen(testSession, 3, 1)
	b.send(c, withNumber(4, 1, 1, 0, arrive))
	if got := b.take(c); got != reply(4, 0, []byte{wire.StopWaiting}) {
		t.Errorf("%q", got)
	}
}

// TestSessionBarrierAtOnce: also the answer that an arrival gets at once is kept until it is acknowledged for itself.
func TestSessionBarrierAtOnce(t *testing.T) { eachBench(t, testSessionBarrierAtOnce) }

func testSessionBarrierAtOnce(t *testing.T, b *bench) {
	t.Helper()
	arrive := func(b []byte) []byte { return wire.AppendBarrier(b, wire.Native, "/b", 1) }
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, withNumber(2, 1, 1, 0, arrive))
	b.send(c, withNumber(3, 2, 2, 0, addOne("/n")))
	c, _ = b.reopen(testSession, 2, 1)
	b.send(c, withNumber(4, 1, 1, 0, arrive))
	if got := b.take(c); got != reply(4, 0, []byte{wire.StopWaiting}) || string(b.m.table.Find([]byte("/b")).Value()) != "1" {
		t.Errorf("%q", got)
	}
}

// TestSessionPop: a pop that waits is ended by the connection and takes no item while it is away; sent again it waits again.
func TestSessionPop(t *testing.T) { eachBench(t, testSessionPop) }

func testSessionPop(t *testing.T, b *bench) {
	t.Helper()
	pop := func(b []byte) []byte { return wire.AppendQueuePop(b, "/q", true) }
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, withNumber(2, 1, 1, 0, pop))
	b.m.Close(c)
	other := b.dial(wire.V)
	b.send(other, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", []byte("x")))
	if n := b.m.queues.byKey["/q"].len(); n != 1 {
		t.Fatalf("%d items", n)
	}
	for generation := uint64(2); generation < 4; generation++ { // the second time the answer is remembered
		c, _ = b.reopen(testSession, generation, 1)
		b.send(c, withNumber(3, 1, 1, 0, pop))
		if got := b.take(c); got != reply(3, 0, []byte(num(1)+str("x"))) {
			t.Fatalf("generation %d: %q", generation, got)
		}
	}
}

// TestSessionClaims: a session that is back has its claims, unless another client has taken them over meanwhile. Each client of a session
// has claims of its own.
func TestSessionClaims(t *testing.T) { eachBench(t, testSessionClaims) }

func testSessionClaims(t *testing.T, b *bench) {
	t.Helper()
	claim := func(name, expected, text string) func([]byte) []byte {
		return func(b []byte) []byte {
			return wire.AppendCompareSet(b, wire.Native, wire.ClaimPrefix+name, []byte(expected), []byte(text))
		}
	}
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, frame(1, func(b []byte) []byte { return wire.AppendLeave(b, 5) })) // which has claimed nothing
	b.take(c)
	b.send(c, withNumber(2, 1, 1, 5, claim("a", "", "five")))
	b.send(c, withNumber(3, 2, 1, 6, claim("a", "five", "six")))
	b.send(c, withNumber(4, 3, 1, 6, claim("b", "", "six")))
	if got := b.take(c); got != reply(2, 0, []byte(str("five")))+reply(3, 0, []byte(str("five")))+reply(4, 0, []byte(str("six"))) {
		t.Fatalf("%q", got)
	}
	b.m.Close(c)
	other := b.dial(wire.Native)
	b.send(other, frame(1, claim("b", "six", "other")))
	c, _ = b.reopen(testSession, 2, 4)
	all := b.m.Claims()
	if a, bb := all["a"], all["b"]; !a.Held || bb.Text != "other" {
		t.Errorf("%v", all)
	}
	b.send(c, frame(9, func(b []byte) []byte { return wire.AppendLeave(b, 5) }))
	if b.m.Claims()["a"].Held {
		t.Error("the claim of a client that has left is held")
	}
}

// TestSessionExpires: a session that is away for too long has ended.
func TestSessionExpires(t *testing.T) { eachBench(t, testSessionExpires) }

func testSessionExpires(t *testing.T, b *bench) {
	t.Helper()
	b.m.Tick(1)
	c, _ := b.reopen(testSession, 1, 1)
	b.m.Close(c)
	b.m.Tick(sessionGrace)
	b.m.Expire(20)
	if len(b.m.sessions.byID) != 1 {
		t.Fatal("it ended too early")
	}
	b.m.Tick(sessionGrace + 1)
	b.m.Expire(20)
	b.commit()
	if _, code := b.reopen(testSession, 2, 1); code != cohort.NotFound || b.m.sessions.bytes != 0 {
		t.Errorf("%v, %d bytes", code, b.m.sessions.bytes)
	}
}

// TestSessionWindow: a client that acknowledges nothing is refused, and goes on when it has.
func TestSessionWindow(t *testing.T) { eachBench(t, testSessionWindow) }

func testSessionWindow(t *testing.T, b *bench) {
	t.Helper()
	c, _ := b.reopen(testSession, 1, 1)
	for seq := uint64(1); seq <= wire.SessionWindow; seq++ {
		b.send(c, withNumber(5, seq, 1, 0, addOne("/n")))
	}
	b.take(c)
	b.send(c, withNumber(5, wire.SessionWindow+1, 1, 0, addOne("/n")))
	if got := b.take(c); cohort.Code(got[wire.FrameHeader]) != cohort.Exhausted {
		t.Errorf("%q", got)
	}
	b.send(c, withNumber(5, wire.SessionWindow+1, 2, 0, addOne("/n")))
	if got := b.take(c); got != reply(5, 0, []byte(num(wire.SessionWindow+1))) {
		t.Errorf("%q", got)
	}
}
