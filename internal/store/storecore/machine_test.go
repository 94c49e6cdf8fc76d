// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

func expect(t *testing.T, b *bench, c *Conn, what, want string) {
	t.Helper()
	if got := b.take(c); got != want {
		t.Errorf("%s: got % x, want % x", what, got, want)
	}
}

func TestAddWrapsAndRepliesFirst(t *testing.T) {
	b := newBench(testLimits)
	c := b.dial(wire.V)
	b.send(c, wire.AppendSet(nil, wire.V, "n", []byte("9223372036854775807")))
	b.send(c, wire.AppendAdd(nil, wire.V, "n", 1))
	expect(t, b, c, "max plus one", num(math.MinInt64))
	// One client waits for the key that it creates itself: the sum comes before the end of the wait.
	b.send(c, wire.AppendKeys(nil, wire.V, wire.Wait, "m"))
	b.send(c, wire.AppendAdd(nil, wire.V, "m", 5))
	expect(t, b, c, "add and wait", num(5)+"\x00")
}

func TestNotANumberCutsAndKeepsTheValue(t *testing.T) {
	b := newBench(testLimits)
	v, native, other := b.dial(wire.V), b.dial(wire.Native), b.dial(wire.V)
	b.send(other, wire.AppendSet(nil, wire.V, "k", []byte("word")))
	b.send(v, wire.AppendAdd(nil, wire.V, "k", 1))
	if !errors.Is(b.cuts[v], cohort.NotANumber) {
		t.Errorf("cut: %v", b.cuts[v])
	}
	b.send(native, frame(1, func(f []byte) []byte { return wire.AppendAdd(f, wire.Native, "k", 1) }))
	if got := b.take(native); got[8] != byte(cohort.NotANumber) || !strings.Contains(got, "word") {
		t.Errorf("native: %q", got)
	}
	b.send(native, frame(2, func(f []byte) []byte { return wire.AppendPing(f, wire.Native, 9) }))
	expect(t, b, native, "the connection goes on", reply(2, 0, []byte{9, 0, 0, 0}))
	b.send(other, wire.AppendKey(nil, wire.V, wire.Get, "k"))
	expect(t, b, other, "value", str("word"))
}

func TestCompareSetWakes(t *testing.T) {
	b := newBench(testLimits)
	w, c := b.dial(wire.Legacy), b.dial(wire.V)
	b.send(w, wire.AppendKeys(nil, wire.Legacy, wire.Wait, "k"))
	b.send(c, wire.AppendCompareSet(nil, wire.V, "k", []byte("other"), []byte("new")))
	expect(t, b, c, "not created", str("other"))
	expect(t, b, w, "not woken", "")
	b.send(c, wire.AppendCompareSet(nil, wire.V, "k", nil, []byte("new")))
	expect(t, b, w, "woken", "\x00")
}

func TestWaitRules(t *testing.T) {
	set := func(b *bench, c *Conn, keys ...string) {
		for _, k := range keys {
			b.send(c, wire.AppendSet(nil, wire.V, k, nil))
		}
	}
	t.Run("empty list", func(t *testing.T) {
		b := newBench(testLimits)
		c := b.dial(wire.V)
		b.send(c, wire.AppendKeys(nil, wire.V, wire.Wait))
		expect(t, b, c, "wait for nothing", "\x00")
		b.send(c, wire.AppendKeys(nil, wire.V, wire.Check))
		expect(t, b, c, "check of nothing", "\x00")
		b.send(c, wire.AppendKeys(nil, wire.V, wire.MultiGet))
		expect(t, b, c, "multi_get of nothing", "")
	})
	t.Run("duplicates", func(t *testing.T) {
		b := newBench(testLimits)
		w, c := b.dial(wire.V), b.dial(wire.V)
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "a", "a", "b", "a"))
		set(b, c, "a")
		expect(t, b, w, "one of two", "")
		set(b, c, "b")
		expect(t, b, w, "both", "\x00")
	})
	t.Run("deleted meanwhile", func(t *testing.T) {
		b := newBench(testLimits)
		w, n, c := b.dial(wire.V), b.dial(wire.Native), b.dial(wire.V)
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "a", "b"))
		b.send(n, frame(1, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, "a", "b") }))
		b.send(n, frame(2, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.MultiGet, "a", "b") }))
		set(b, c, "a")
		b.send(c, wire.AppendKey(nil, wire.V, wire.DeleteKey, "a"))
		set(b, c, "b")
		expect(t, b, w, "PyTorch's rule", "\x00")
		expect(t, b, n, "the native rule", "")
		set(b, c, "a")
		expect(t, b, n, "all there", reply(1, 0, []byte{0})+reply(2, 0, []byte(str("")+str(""))))
	})
	t.Run("served while waiting", func(t *testing.T) {
		b := newBench(testLimits)
		w, c := b.dial(wire.V), b.dial(wire.V)
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "a"))
		b.send(w, wire.AppendPing(nil, wire.V, 1))
		expect(t, b, w, "ping", "\x01\x00\x00\x00")
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "b"))
		set(b, c, "a", "b")
		expect(t, b, w, "two waits", "\x00\x00")
	})
	t.Run("cancel", func(t *testing.T) {
		b := newBench(testLimits)
		w, c := b.dial(wire.V), b.dial(wire.V)
		b.send(w, wire.AppendPlain(nil, wire.V, wire.CancelWait))
		expect(t, b, w, "no wait", "\x01")
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "a"))
		b.send(w, wire.AppendPlain(nil, wire.V, wire.CancelWait))
		set(b, c, "a")
		expect(t, b, w, "cancelled", "\x01")
		if b.m.waits.n != 0 || len(b.m.waits.byKey) != 0 || b.m.admission.waits != 0 {
			t.Errorf("%d waits, %d lists, %d bytes are left", b.m.waits.n, len(b.m.waits.byKey), b.m.admission.waits)
		}
	})
	t.Run("legacy gives up", func(t *testing.T) {
		b := newBench(testLimits)
		w, c := b.dial(wire.Legacy), b.dial(wire.V)
		b.send(w, wire.AppendKeys(nil, wire.Legacy, wire.Wait, "a"))
		b.send(w, wire.AppendAdd(nil, wire.Legacy, "n", 7))
		set(b, c, "a")
		expect(t, b, w, "no stray byte", num(7))
	})
	t.Run("gone", func(t *testing.T) {
		b := newBench(testLimits)
		w, c := b.dial(wire.V), b.dial(wire.V)
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "a", "b"))
		b.m.Close(w)
		b.m.Close(w)
		set(b, c, "a", "b")
		if b.m.waits.n != 0 || b.m.admission.waits != 0 || len(b.got) != 0 {
			t.Errorf("%d waits, %d bytes", b.m.waits.n, b.m.admission.waits)
		}
	})
}

func TestNativeGetWaits(t *testing.T) {
	b := newBench(testLimits)
	n, c := b.dial(wire.Native), b.dial(wire.Legacy)
	b.send(n, frame(1, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "a") }))
	b.send(n, frame(2, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "a") }))
	b.send(n, frame(3, func(f []byte) []byte { return wire.AppendSet(f, wire.Native, "other", nil) }))
	expect(t, b, n, "acknowledged meanwhile", reply(3, 0, nil))
	b.send(n, frame(4, func(f []byte) []byte { return wire.AppendCancel(f, 1) }))
	if got := b.take(n); len(got) < 9 || got[4] != 1 || got[8] != byte(cohort.Canceled) {
		t.Errorf("cancelled: % x", got)
	}
	b.send(n, frame(5, func(f []byte) []byte { return wire.AppendCancel(f, 1) }))
	expect(t, b, n, "cancelled again", "")
	b.send(c, wire.AppendSet(nil, wire.Legacy, "a", []byte("value")))
	expect(t, b, n, "get", reply(2, 0, []byte(str("value"))))
	b.send(n, frame(2, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "zzz") }))
	b.send(n, frame(2, func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "zzz") }))
	if !errors.Is(b.cuts[n], cohort.Protocol) {
		t.Errorf("an id used twice: %v", b.cuts[n])
	}
}

func TestNativeRecognition(t *testing.T) {
	b := newBench(testLimits)
	c := b.dial(wire.V)
	b.send(c, wire.AppendKeys(nil, wire.V, wire.Check, wire.NativeKey))
	expect(t, b, c, "check", "\x00")
	b.send(c, wire.AppendKeys(nil, wire.V, wire.Check, wire.NativeKey, "x"))
	expect(t, b, c, "not alone", "\x01")
	b.send(c, wire.AppendPlain(nil, wire.V, wire.NumKeys))
	expect(t, b, c, "not counted", num(0))
	b.send(c, wire.AppendPlain(nil, wire.V, wire.ListKeys))
	expect(t, b, c, "not listed", num(0))
	b.send(c, wire.AppendSet(nil, wire.V, wire.NativeKey, nil))
	if !errors.Is(b.cuts[c], cohort.InvalidArgument) {
		t.Errorf("set of the reserved key: %v", b.cuts[c])
	}
	for _, late := range [][]byte{
		wire.AppendUint32([]byte{byte(wire.Upgrade)}, 2),
		wire.AppendUpgrade(wire.AppendKeys(nil, wire.V, wire.Wait, "k")),
		wire.AppendValidate(nil),
	} {
		c := b.dial(wire.V)
		b.send(c, late)
		if !errors.Is(b.cuts[c], cohort.Protocol) {
			t.Errorf("% x: %v", late, b.cuts[c])
		}
	}
}

func TestNativeFrameOverTheLimit(t *testing.T) {
	limits := testLimits
	limits.Value, limits.Request = 100, 300
	b := newBench(limits)
	c := b.dial(wire.Native)
	set := func(id uint32, n int) []byte {
		return frame(id, func(f []byte) []byte { return wire.AppendSet(f, wire.Native, "k", make([]byte, n)) })
	}
	big := append(set(1, 1000), frame(2, func(f []byte) []byte { return wire.AppendPing(f, wire.Native, 3) })...)
	for i := range big {
		b.send(c, big[i:i+1])
	}
	got := b.take(c)
	if got[4] != 1 || got[8] != byte(cohort.TooLarge) || !strings.HasSuffix(got, reply(2, 0, []byte{3, 0, 0, 0})) {
		t.Errorf("over the request limit: %q", got)
	}
	b.send(c, set(3, 101))
	if got := b.take(c); got[4] != 3 || got[8] != byte(cohort.TooLarge) {
		t.Errorf("over the value limit: %q", got)
	}
	b.send(c, set(4, 100))
	expect(t, b, c, "at the limit", reply(4, 0, nil))
}

func TestQueues(t *testing.T) {
	b := newBench(testLimits)
	p, w1, w2, n := b.dial(wire.V), b.dial(wire.V), b.dial(wire.V), b.dial(wire.Native)
	push := func(item string) { b.send(p, wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "q", []byte(item))) }
	for _, w := range []*Conn{w1, w2} {
		b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "q"))
	}
	push("1")
	expect(t, b, w1, "the first waiter", "\x00")
	expect(t, b, w2, "only one is woken", "")
	b.send(w1, wire.AppendKey(nil, wire.V, wire.QueuePop, "q"))
	expect(t, b, w1, "pop", num(1)+str("1"))
	b.send(w1, wire.AppendKey(nil, wire.V, wire.QueuePop, "q"))
	expect(t, b, w1, "pop of an empty queue", num(0))
	// A later wait of the client that was woken is not touched by the next push.
	b.send(w1, wire.AppendKeys(nil, wire.V, wire.Wait, "other"))
	b.send(n, frame(1, func(f []byte) []byte { return wire.AppendQueuePop(f, "q", true) }))
	b.send(n, frame(2, func(f []byte) []byte { return wire.AppendQueuePop(f, "q", false) }))
	expect(t, b, n, "a pop that does not wait", reply(2, 0, []byte(num(0))))
	push("2")
	expect(t, b, n, "handed over", reply(1, 0, []byte(num(1)+str("2"))))
	expect(t, b, w1, "stale", "")
	push("3")
	push("4")
	expect(t, b, w2, "the second waiter", "\x00")
	b.send(p, wire.AppendKey(nil, wire.V, wire.QueueLen, "q"))
	expect(t, b, p, "length", num(2))
	b.send(p, wire.AppendKeys(nil, wire.V, wire.Check, "q"))
	expect(t, b, p, "a queue with items is there", "\x00")
	b.send(p, wire.AppendPlain(nil, wire.V, wire.NumKeys))
	expect(t, b, p, "queues are not counted", num(0))
	for i := range 100 {
		push(strconv.Itoa(i))
	}
	for _, want := range []string{"3", "4", "0", "1"} {
		b.send(n, frame(1, func(f []byte) []byte { return wire.AppendQueuePop(f, "q", true) }))
		if got := b.take(n); !strings.HasSuffix(got, str(want)) {
			t.Errorf("popped %q, want %q", got, want)
		}
	}
	for range 98 {
		b.send(p, wire.AppendKey(nil, wire.V, wire.QueuePop, "q"))
	}
	b.m.Close(w1)
	if b.m.queues.bytes != 0 || len(b.m.queues.byKey) != 0 {
		t.Errorf("%d bytes and %d queues are left", b.m.queues.bytes, len(b.m.queues.byKey))
	}
}

func TestBarrier(t *testing.T) {
	b := newBench(testLimits)
	v, n, late := b.dial(wire.V), b.dial(wire.Native), b.dial(wire.V)
	b.send(v, wire.AppendBarrier(nil, wire.V, "b", 3))
	b.send(n, frame(1, func(f []byte) []byte { return wire.AppendBarrier(f, wire.Native, "b", 3) }))
	expect(t, b, v, "two of three", "")
	b.send(late, wire.AppendBarrier(nil, wire.V, "b", 3))
	expect(t, b, v, "first", "\x00")
	expect(t, b, n, "second", reply(1, 0, []byte{0}))
	expect(t, b, late, "third", "\x00")
	b.send(late, wire.AppendBarrier(nil, wire.V, "b", 3))
	expect(t, b, late, "never reset", "\x00")
	b.send(late, wire.AppendKey(nil, wire.V, wire.Get, "b"))
	expect(t, b, late, "the count", str("4"))
}

func TestWatch(t *testing.T) {
	b := newBench(testLimits)
	w, c := b.dial(wire.Legacy), b.dial(wire.V)
	b.send(w, wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "k"))
	expect(t, b, w, "registered", "\x03")
	event := func(kind byte, old, value string) string { return string(kind) + str("k") + str(old) + str(value) }
	for _, s := range []struct {
		what    string
		request []byte
		want    string
	}{
		{"created", wire.AppendSet(nil, wire.V, "k", []byte("1")), event(wire.KeyCreated, "", "1")},
		{"another key", wire.AppendSet(nil, wire.V, "x", []byte("1")), ""},
		{"updated", wire.AppendSet(nil, wire.V, "k", []byte("2")), event(wire.KeyUpdated, "1", "2")},
		{"added", wire.AppendAdd(nil, wire.V, "k", 40), event(wire.KeyUpdated, "2", "42")},
		{"compared", wire.AppendCompareSet(nil, wire.V, "k", []byte("42"), []byte("x")), event(wire.KeyUpdated, "42", "x")},
		{"not changed", wire.AppendCompareSet(nil, wire.V, "k", []byte("42"), []byte("y")), ""},
		{"appended", wire.AppendKeyValue(nil, wire.V, wire.Append, "k", []byte("y")), event(wire.KeyAppended, "x", "xy")},
		{"deleted", wire.AppendKey(nil, wire.V, wire.DeleteKey, "k"), event(wire.KeyDeleted, "xy", "")},
		{
			"multi_set", wire.AppendMultiSet(nil, wire.V, []string{"k", "k"}, [][]byte{[]byte("a"), []byte("b")}),
			event(wire.KeyCreated, "", "a") + event(wire.KeyUpdated, "a", "b"),
		},
	} {
		b.send(c, s.request)
		expect(t, b, w, s.what, s.want)
	}
	b.m.Close(w)
	if len(b.m.watchers) != 0 || b.m.admission.waits != 0 {
		t.Errorf("%d watches, %d bytes are left", len(b.m.watchers), b.m.admission.waits)
	}
}

func TestMultiSetIsAllOrNothing(t *testing.T) {
	limits := testLimits
	limits.Memory = 20 << 10
	b := newBench(limits)
	w, c, other := b.dial(wire.Native), b.dial(wire.V), b.dial(wire.V)
	b.send(w, frame(1, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.MultiGet, "a", "b") }))
	whole := wire.AppendMultiSet(nil, wire.V, []string{"a", "b"}, [][]byte{[]byte("1"), []byte("2")})
	b.send(c, whole[:len(whole)-1])
	b.send(other, wire.AppendPlain(nil, wire.V, wire.NumKeys))
	expect(t, b, other, "half a request stores nothing", num(0))
	b.send(c, whole[len(whole)-1:])
	expect(t, b, w, "both at once", reply(1, 0, []byte(str("1")+str("2"))))
	b.send(c, wire.AppendMultiSet(nil, wire.V, []string{"a", "big"}, [][]byte{[]byte("x"), make([]byte, 30<<10)}))
	if b.cuts[c] == nil {
		t.Error("over the memory limit: not cut")
	}
	b.send(other, wire.AppendKey(nil, wire.V, wire.Get, "a"))
	expect(t, b, other, "nothing of it was stored", str("1"))
}

func TestSnapshot(t *testing.T) {
	b := newBench(testLimits)
	b.m.Tick(100)
	w, c := b.dial(wire.V), b.dial(wire.Legacy)
	w.Peer = "10.0.0.1:5"
	b.send(w, wire.AppendKeys(nil, wire.V, wire.Wait, "k", "j"))
	b.m.Tick(200)
	b.send(w, wire.AppendBarrier(nil, wire.V, "bar", 2))
	b.send(c, wire.AppendSet(nil, wire.Legacy, "x", []byte("y")))
	s := b.m.Snapshot(2)
	want := []waitInfo{{Key: "j", Peer: "10.0.0.1:5", Since: 100}, {Key: "k", Peer: "10.0.0.1:5", Since: 100}}
	if fmt.Sprint(s.Waiters) != fmt.Sprint(want) || s.NWaits != 2 {
		t.Errorf("waiters %+v of %d", s.Waiters, s.NWaits)
	}
	if s.Conns[wire.V] != 1 || s.Conns[wire.Legacy] != 1 || s.Ops[wire.Set] != 1 || s.Ops[wire.Wait] != 1 || s.Keys != 2 {
		t.Errorf("%+v", s)
	}
}
