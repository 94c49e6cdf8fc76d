// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// restarted returns what another process makes of the log, as it is now or of an image and what follows it.
func (b *bench) restarted(t *testing.T, image bool) *bench {
	t.Helper()
	next := newLoggedBench(testLimits)
	next.m.config.Server = b.m.config.Server + 1
	from := 0
	if image {
		from = len(b.log)
		if err := next.m.Restore(uint64(from), bytes.NewReader(b.image())); err != nil {
			t.Fatal(err)
		}
	}
	replay(t, next.m, b.log[from:])
	if got, want := next.m.Hash(), b.m.Hash(); got != want {
		t.Fatalf("it holds %x, want %x", got, want)
	}
	next.log = b.log
	next.m.ProposeRestart()
	next.commit()
	return next
}

func (b *bench) image() (all []byte) {
	i := b.m.BeginImage()
	for more := true; more; {
		var part []byte
		part, more = i.Next()
		all = append(all, part...)
	}
	return all
}

// TestSessionLogged: a session goes on in the process that follows: it has its answers, its place at a barrier and its claims, and what was
// acknowledged is forgotten.
func TestSessionLogged(t *testing.T) {
	t.Parallel()
	for _, image := range []bool{false, true} {
		b := newLoggedBench(testLimits)
		arrive := func(b []byte) []byte { return wire.AppendBarrier(b, wire.Native, "/b", 2) }
		claim := func(b []byte) []byte {
			return wire.AppendCompareSet(b, wire.Native, wire.ClaimPrefix+"rank/0", nil, []byte("me"))
		}
		pop := func(b []byte) []byte { return wire.AppendQueuePop(b, "/q", true) }
		c, _ := b.reopen(testSession, 1, 1)
		for i, body := range []func([]byte) []byte{addOne("/n"), arrive, claim, pop} {
			b.send(c, withNumber(uint32(i+2), uint64(i+1), 1, 3, body))
		}
		want := reply(2, 0, []byte(num(1))) + reply(4, 0, []byte(str("me")))
		if got := b.take(c); got != want {
			t.Fatalf("%q", got)
		}
		b = b.restarted(t, image)
		if b.m.Claims()["rank/0"].Held {
			t.Error("a claim of a process that has ended is held")
		}
		c, code := b.reopen(testSession, 2, 1)
		if code != 0 || !b.m.Claims()["rank/0"].Held {
			t.Fatalf("%v, claims %v", code, b.m.Claims())
		}
		for i, body := range []func([]byte) []byte{addOne("/n"), arrive, claim, pop} {
			b.send(c, withNumber(uint32(i+2), uint64(i+1), 1, 3, body))
		}
		if got := b.take(c); got != want {
			t.Errorf("%q", got)
		}
		other := b.dial(wire.V)
		b.send(other, wire.AppendBarrier(nil, wire.V, "/b", 2))
		b.send(other, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", []byte("item")))
		if got := b.take(c); got != reply(3, 0, []byte{wire.StopWaiting})+reply(5, 0, []byte(num(1)+str("item"))) {
			t.Errorf("%q", got)
		}
		b = b.restarted(t, image)
		c, _ = b.reopen(testSession, 3, 1)
		b.send(c, withNumber(5, 4, 1, 3, pop))
		if got := b.take(c); got != reply(5, 0, []byte(num(1)+str("item"))) {
			t.Errorf("%q", got)
		}
		for _, seq := range []uint64{2, 4} {
			b.send(c, frame(9, func(b []byte) []byte { return wire.AppendAcked(b, seq) }))
		}
		b.send(c, withNumber(6, 5, 5, 3, addOne("/n")))
		b = b.restarted(t, image)
		s := b.m.sessions.byID[testSession]
		if len(s.open) != 0 || s.bytes != sessionCost || s.at(3) != nil || s.last != 5 {
			t.Errorf("%d answers are kept, %d bytes: %+v", len(s.open), s.bytes, s)
		}
		if got := string(b.m.table.Find([]byte("/n")).Value()); got != "2" {
			t.Errorf("the counter is %s", got)
		}
	}
}

// underWay takes what is to be logged, which is committed later.
func (b *bench) underWay() (entries []Entry) {
	for _, k := range b.m.Commands() {
		e := Entry{Index: uint64(len(b.log) + 1), Data: k.Data, Local: k}
		b.log, entries = append(b.log, e), append(entries, e)
	}
	return entries
}

// TestSessionOldCommand: a command that is committed after its session was opened again changes nothing: what was lost before it would come
// too late. All of it is done when it is sent again.
func TestSessionOldCommand(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	c, _ := b.reopen(testSession, 1, 1)
	for seq := uint64(1); seq <= 2; seq++ {
		b.m.Receive(c, withNumber(2, seq, 1, 0, addOne("/n")))
	}
	late := b.underWay()
	c, _ = b.reopen(testSession, 2, 1)
	b.m.Commit(late[1:])
	b.flush()
	for seq := uint64(1); seq <= 2; seq++ {
		b.send(c, withNumber(3, seq, 1, 0, addOne("/n")))
		if got := b.take(c); got != reply(3, 0, []byte(num(int64(seq)))) {
			t.Errorf("request %d: %q", seq, got)
		}
	}
}

// TestSessionUnderWay: what was under way to the log when the connection broke is applied and remembered; it is not logged again.
func TestSessionUnderWay(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	pop := func(b []byte) []byte { return wire.AppendQueuePop(b, "/q", true) }
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, withNumber(2, 1, 1, 0, pop))
	b.m.Receive(b.dial(wire.V), wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", []byte("item")))
	b.m.Receive(c, withNumber(3, 2, 1, 0, addOne("/n")))
	b.m.Commit(b.underWay()) // now the item is on its way to the pop
	late := b.underWay()
	if len(late) != 1 {
		t.Fatalf("%d commands are under way", len(late))
	}
	b.m.Close(c)
	b.m.Commit(late)
	b.flush()
	c, _ = b.reopen(testSession, 2, 1)
	logged := len(b.log)
	b.send(c, withNumber(4, 1, 1, 0, pop))
	b.send(c, withNumber(5, 2, 1, 0, addOne("/n")))
	if got := b.take(c); got != reply(4, 0, []byte(num(1)+str("item")))+reply(5, 0, []byte(num(1))) || len(b.log) != logged {
		t.Errorf("%q, %d commands", got, len(b.log)-logged)
	}
}

// TestSessionCanceledPop: a pop whose client does not want to wait any longer gets the item that is on its way, or leaves it where it is.
func TestSessionCanceledPop(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	pop := func(b []byte) []byte { return wire.AppendQueuePop(b, "/q", true) }
	c, _ := b.reopen(testSession, 1, 1)
	cancel := func(id uint32) []byte { return frame(9, func(b []byte) []byte { return wire.AppendCancel(b, id) }) }
	b.send(c, withNumber(2, 1, 1, 0, pop))
	b.send(c, cancel(2))
	if got := b.take(c); got != reply(2, byte(cohort.Canceled), []byte(canceled().Error())) {
		t.Errorf("%q", got)
	}
	b.send(c, frame(9, func(b []byte) []byte { return wire.AppendAcked(b, 1) }))
	b.send(c, withNumber(3, 2, 2, 0, pop))
	b.m.Receive(b.dial(wire.V), wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", []byte("item")))
	b.m.Commit(b.underWay())
	b.m.Receive(c, cancel(3))
	b.flush()
	if got := b.take(c); got != reply(3, 0, []byte(num(1)+str("item"))) {
		t.Errorf("%q", got)
	}
}

// TestSessionNotLogged: a request that was numbered in a session that cannot be opened is refused for the same reason: it was not applied.
// If the session was open before, that is not known.
func TestSessionNotLogged(t *testing.T) {
	t.Parallel()
	for generation, want := range map[uint64]cohort.Code{1: cohort.Exhausted, 2: cohort.PeerLost} {
		b := newLoggedBench(testLimits)
		c := b.dial(wire.Native)
		b.m.Receive(c, frame(1, func(b []byte) []byte { return wire.AppendSession(b, testSession, testSession, generation, 0) }))
		b.m.Receive(c, withNumber(2, 1, 1, 0, addOne("/n")))
		b.m.Abort(b.m.Commands(), errFull)
		b.flush()
		got := b.take(c)
		first := reply(1, byte(cohort.Exhausted), []byte(errFull.Error()))
		if !strings.HasPrefix(got, first) || cohort.Code(got[len(first)+wire.FrameHeader]) != want || len(b.log) != 0 {
			t.Errorf("generation %d: %q", generation, got)
		}
	}
}

// TestSessionsCleared: the session that has cleared a store goes on in the new one, on every machine; all others end.
func TestSessionsCleared(t *testing.T) {
	t.Parallel()
	b := newLoggedBench(testLimits)
	b.m.config.Identity = func() Identity { return Identity{1, 2, 3} }
	other, _ := b.reopen(sessionID([]byte("session-0000-two")), 1, 1)
	c, _ := b.reopen(testSession, 1, 1)
	b.send(c, withNumber(2, 1, 1, 0, func(b []byte) []byte { return wire.AppendBarrier(b, wire.Native, "/b", 2) }))
	id := b.m.Identity()
	b.send(c, withNumber(3, 2, 2, 0, func(b []byte) []byte { return wire.AppendClear(b, id[:]) }))
	b = b.restarted(t, true)
	if len(b.m.sessions.byID) != 1 || other.session != nil {
		t.Errorf("%d sessions are left", len(b.m.sessions.byID))
	}
	c, _ = b.reopen(testSession, 2, 2)
	b.send(c, withNumber(4, 2, 2, 0, func(b []byte) []byte { return wire.AppendClear(b, id[:]) }))
	id = b.m.Identity()
	if got := b.take(c); got != reply(4, 0, []byte(str(string(id[:]))+num(1))) {
		t.Errorf("%q", got)
	}
}

// TestSessionMemory: what sessions remember has a share of the memory; those that are away lose it first.
func TestSessionMemory(t *testing.T) { eachBench(t, sessionMemory) }

func sessionMemory(t *testing.T, b *bench) {
	t.Helper()
	b.m.admission.shares.waits = 64 << 10
	away, _ := b.reopen(sessionID([]byte("session-0000-two")), 1, 1)
	b.m.Close(away)
	c, _ := b.reopen(testSession, 1, 1)
	code, seq := cohort.Code(0), uint64(0)
	for code == 0 && seq < 1000 {
		seq++
		b.send(c, withNumber(2, seq, 1, 0, func(b []byte) []byte {
			return wire.AppendCompareSet(b, wire.Native, "/k", nil, bytes.Repeat([]byte{1}, 1000))
		}))
		code = cohort.Code(b.take(c)[wire.FrameHeader])
	}
	if code != cohort.Exhausted || seq < 30 || len(b.m.sessions.byID) != 1 || b.m.ending != 0 {
		t.Errorf("request %d is answered with %v, %d sessions", seq, code, len(b.m.sessions.byID))
	}
	b.send(c, frame(9, func(b []byte) []byte { return wire.AppendLeave(b, 0) }))
	if n := b.m.sessions.bytes; n != 0 {
		t.Errorf("%d bytes are counted for no session", n)
	}
}

// formerLog and formerImage were written by a version without sessions: a set, an append, a claim, an add, a push, a release and a restart.
var formerLog = []string{
	"0100" + "01" + "0200000000000000" + "2f6b" + "0100000000000000" + "76",
	"020064" + "09" + "0200000000000000" + "2f6b" + "0100000000000000" + "77",
	"0300" + "0700000000000000" + "0100000000000000" + "0870656572" + "686f7374" + "02" + "0f00000000000000" +
		"00636f686f72742f636c61696d2f" + "61" + "0000000000000000" + "0100000000000000" + "41",
	"0100" + "04" + "0200000000000000" + "2f6e" + "0500000000000000",
	"0100" + "0e" + "0200000000000000" + "2f71" + "0100000000000000" + "69",
	"0400" + "0700000000000000" + "0100000000000000",
	"0500" + "0900000000000000",
}

const formerImage = "53" + "01" + "00" + "00000000000000000000000000000000" +
	"52" + "0161" + "0141" + "0870656572686f7374" +
	"4b" + "022f6b" + "027677" + "4b" + "022f6e" + "0135" + "51" + "022f71" + "01" + "0169" + "45" + "020101"

// TestFormerFormats: a log and an image of the version before sessions are read, and hold the same.
func TestFormerFormats(t *testing.T) {
	t.Parallel()
	of := func(m *Machine) string {
		return fmt.Sprintf("%s %s %d %v", m.table.Find([]byte("/k")).Value(), m.table.Find([]byte("/n")).Value(),
			m.queues.byKey["/q"].len(), m.Claims())
	}
	logged, restored := follower(), follower()
	for i, text := range formerLog {
		data, _ := hex.DecodeString(text)
		if err := logged.Replay(Entry{Index: uint64(i + 1), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	image, _ := hex.DecodeString(formerImage)
	if err := restored.Restore(7, bytes.NewReader(image)); err != nil {
		t.Fatal(err)
	}
	if got, want := of(logged), "vw 5 1 map[a:{A false}]"; got != want || of(restored) != want {
		t.Errorf("%s, %s, want %s", got, of(restored), want)
	}
	if logged.Hash() != restored.Hash() {
		t.Error("they hold different things")
	}
	image[1]++
	image[1]++
	if err := follower().Restore(7, bytes.NewReader(image)); err == nil || !strings.Contains(err.Error(), "use a newer one") {
		t.Errorf("an image of a newer version: %v", err)
	}
	newer := follower()
	err := newer.Replay(Entry{Index: 1, Data: []byte{byte(kindLimit), 0}})
	if err == nil || !strings.Contains(err.Error(), "newer version") {
		t.Errorf("a command of a newer version: %v", err)
	}
}

// TestDocumentedCommands: the page lists the kinds that there are.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/wire/storedata.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind := kindRequest; kind <= kindLimit; kind++ {
		if listed := strings.Contains(string(page), fmt.Sprintf("\n| %d | ", kind)); listed != (kind < kindLimit) {
			t.Errorf("kind %d is listed: %v", kind, listed)
		}
	}
	for _, kind := range "SKQCRNATLE" {
		if !strings.Contains(string(page), fmt.Sprintf("\n| `%c` | ", kind)) {
			t.Errorf("the part %c of an image is not described", kind)
		}
	}
	if !strings.Contains(string(page), fmt.Sprintf("number %d, the version", imageVersion)) {
		t.Errorf("the version of images is not %d", imageVersion)
	}
}
