// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// identityBench numbers its identities: the first is all 1, the next all 2.
func identityBench(forget bool) *bench {
	b := newBench(testLimits)
	drawn := byte(0)
	b.m = New(Config{Limits: testLimits, Stats: func() []byte { return []byte("{}") }, Forget: forget, Identity: func() Identity {
		drawn++
		return numbered(drawn)
	}})
	return b
}

func numbered(n byte) (id Identity) {
	for i := range id {
		id[i] = n
	}
	return id
}

func told(id uint32, n byte, keys int64) string {
	identity := numbered(n)
	return reply(id, 0, wire.AppendInt(wire.AppendBytes(nil, identity[:]), keys))
}

func gone(id uint32) string { return reply(id, byte(cohort.Replaced), []byte(replaced().Error())) }

func hello(id uint32, known ...byte) []byte {
	var expected []byte
	for _, n := range known {
		identity := numbered(n)
		expected = identity[:]
	}
	return frame(id, func(b []byte) []byte { return wire.AppendHello(b, expected) })
}

func setFrame(id uint32, key, value string) []byte {
	return frame(id, func(b []byte) []byte { return wire.AppendSet(b, wire.Native, key, []byte(value)) })
}

func TestHello(t *testing.T) {
	b := identityBench(false)
	c := b.dial(wire.Native)
	b.send(c, hello(1))
	b.send(c, hello(2, 1))
	if got, want := b.take(c), told(1, 1, 0)+told(2, 1, 0); got != want {
		t.Errorf("hello: % x, want % x", got, want)
	}
	// Requests that follow a hello with another identity must not touch this store, and get no chance to.
	late := b.dial(wire.Native)
	b.send(late, append(append(hello(1, 9), setFrame(2, "/k", "v")...), hello(3, 9)...))
	if got, want := b.take(late), gone(1)+gone(2)+gone(3); got != want {
		t.Errorf("after a hello to another store: %q, want %q", got, want)
	}
	if b.m.table.Len() != 0 || b.cuts[late] != nil {
		t.Errorf("%d keys, cut %v", b.m.table.Len(), b.cuts[late])
	}
	b.send(late, append(hello(4), setFrame(5, "/k", "v")...))
	if got, want := b.take(late), told(4, 1, 0)+reply(5, 0, nil); got != want || b.m.table.Len() != 1 {
		t.Errorf("after a hello to this store: %q, want %q", got, want)
	}
}

func TestClear(t *testing.T) {
	b := identityBench(false)
	torch, legacy, fresh := b.dial(wire.V), b.dial(wire.Legacy), b.dial(wire.V)
	old, waiting, visitor := b.dial(wire.Native), b.dial(wire.Native), b.dial(wire.Native)
	operator := b.dial(wire.Native)
	b.send(torch, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/q", []byte("x")))
	b.send(legacy, wire.AppendKey(wire.AppendSet(nil, wire.Legacy, "/k", []byte("v")), wire.Legacy, wire.WatchKey, "/k"))
	b.send(old, setFrame(1, "/n", "1"))
	b.send(waiting, hello(1))
	b.send(waiting, frame(2, func(b []byte) []byte { return wire.AppendKeys(b, wire.Native, wire.Wait, "/k", "/never") }))
	b.send(waiting, frame(3, func(b []byte) []byte { return wire.AppendQueuePop(b, "/none", true) }))
	b.send(waiting, frame(4, func(b []byte) []byte { return wire.AppendBarrier(b, wire.Native, "/bar", 2) }))
	b.send(waiting, frame(5, func(b []byte) []byte {
		return wire.AppendCompareSet(b, wire.Native, wire.ClaimPrefix+"rank/0", nil, []byte("me"))
	}))
	b.send(fresh, wire.AppendPing(nil, wire.V, 7))
	b.send(operator, hello(1))
	for _, c := range []*Conn{torch, legacy, fresh, old, waiting, operator} {
		b.take(c)
	}

	clearing := func(id uint32, n byte) []byte {
		identity := numbered(n)
		return frame(id, func(b []byte) []byte { return wire.AppendClear(b, identity[:]) })
	}
	b.send(operator, clearing(2, 7))
	if got := b.take(operator); !strings.Contains(got, "is not that of this store") || b.m.table.Len() != 3 {
		t.Fatalf("a clear of another store: %q, %d keys left", got, b.m.table.Len())
	}
	b.send(operator, clearing(3, 1))
	if got, want := b.take(operator), told(3, 2, 4); got != want {
		t.Fatalf("clear: % x, want % x", got, want)
	}
	for name, c := range map[string]*Conn{"v": torch, "legacy": legacy} {
		if !errors.Is(b.cuts[c], cohort.Replaced) {
			t.Errorf("the %s client was cut with %v", name, b.cuts[c])
		}
	}
	if got, want := sortFrames(b.take(waiting)), sortFrames(gone(2)+gone(3)+gone(4)); got != want {
		t.Errorf("open waits: %q, want %q", got, want)
	}
	b.send(old, setFrame(2, "/n", "5"))
	b.send(old, frame(3, func(b []byte) []byte { return wire.AppendCancel(b, 2) }))
	if got, want := b.take(old), gone(2); got != want {
		t.Errorf("an old client: %q, want %q", got, want)
	}
	b.send(visitor, append(hello(1), setFrame(2, "/n", "1")...))
	if got, want := b.take(visitor), told(1, 2, 0)+reply(2, 0, nil); got != want {
		t.Errorf("who had not used the old store: % x, want % x", got, want)
	}
	b.send(fresh, wire.AppendAdd(nil, wire.V, "/n", 1))
	if got := b.take(fresh); got != num(2) || b.cuts[fresh] != nil {
		t.Errorf("a PyTorch client that had not used the old store: % x, cut %v", got, b.cuts[fresh])
	}
	if b.m.waits.n != 0 || b.m.admission.waits != 0 || len(b.m.claims.byName) != 0 || b.m.Identity() != numbered(2) || b.m.run.users != 2 {
		t.Errorf("%d waits, %d bytes, %d claims, identity %x, %d users", b.m.waits.n, b.m.admission.waits, len(b.m.claims.byName),
			b.m.Identity(), b.m.run.users)
	}
	if n := b.m.Clear(); n != 1 || b.m.Identity() != numbered(3) || b.m.run.users != 0 {
		t.Errorf("the second clear took %d keys and left identity %x, %d users", n, b.m.Identity(), b.m.run.users)
	}
}

func TestRunsAreTold(t *testing.T) {
	b := identityBench(false)
	visitor := b.dial(wire.Native)
	left := func() int64 {
		b.send(visitor, hello(1))
		answer := b.take(visitor)
		_, n, _, err := wire.ParseReply(wire.Native, wire.Hello, 0, []byte(answer[9:]), &testLimits.Limits)
		if err != nil || n == 0 {
			t.Fatalf("hello: %q, %v", answer, err)
		}
		r, _, _, _ := wire.ParseReply(wire.Native, wire.Hello, 0, []byte(answer[9:]), &testLimits.Limits)
		return r.Num
	}
	one, two := b.dial(wire.V), b.dial(wire.Legacy)
	b.send(one, wire.AppendSet(nil, wire.V, "/a", nil))
	b.send(two, wire.AppendSet(nil, wire.Legacy, "/b", nil))
	b.m.Close(one)
	if n := left(); n != 0 {
		t.Errorf("the run goes on, %d keys left behind", n)
	}
	b.m.Tick(77)
	b.m.Close(two)
	if n, s := left(), b.m.Snapshot(0); n != 2 || s.Left != 2 || s.LeftAt != 77 {
		t.Errorf("%d keys left behind, snapshot %d at %d", n, s.Left, s.LeftAt)
	}
	b.m.Clear()
	b.send(visitor, frame(2, func(b []byte) []byte { return wire.AppendPlain(b, wire.Native, wire.Stats) }))
	if got, want := b.take(visitor), reply(2, 0, []byte("{}")); got != want {
		t.Errorf("who only looks got %q, want %q", got, want)
	}
	if n := left(); n != 0 {
		t.Errorf("%d keys left behind after a clear", n)
	}
}

func TestForgetWhenTheLastUserLeaves(t *testing.T) {
	b := identityBench(true)
	visitor, one, two := b.dial(wire.Native), b.dial(wire.V), b.dial(wire.Native)
	b.send(visitor, hello(1))
	b.send(one, wire.AppendSet(nil, wire.V, "/a", nil))
	b.send(two, setFrame(1, "/b", ""))
	b.m.Close(one)
	if b.m.table.Len() != 2 || b.m.Identity() != numbered(1) {
		t.Errorf("%d keys while one user is left", b.m.table.Len())
	}
	b.m.Close(two)
	if b.m.table.Len() != 0 || b.m.Identity() != numbered(2) || b.m.run.left != 0 {
		t.Errorf("%d keys and identity %x after the last user left", b.m.table.Len(), b.m.Identity())
	}
}
