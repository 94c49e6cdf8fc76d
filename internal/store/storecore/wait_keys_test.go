// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// tallied has a crowd wait for two keys in every way that there is.
type tallied struct {
	*bench

	writer, torch, native *Conn
	each                  int
}

func newTallied(each int) *tallied {
	limits := workLimits
	limits.Output = 256 << 20
	b := newBench(limits)
	c := &tallied{bench: b, writer: b.dial(wire.V), torch: b.dial(wire.V), native: b.dial(wire.Native), each: each}
	for i := range uint32(each) {
		b.send(c.torch, wire.AppendKeys(nil, wire.V, wire.Wait, "/a"))
		for j, write := range []func([]byte) []byte{
			func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, "/a") },
			func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, "/a", "/b") },
			func(f []byte) []byte { return wire.AppendKey(f, wire.Native, wire.Get, "/a") },
			func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.MultiGet, "/a", "/b") },
		} {
			b.send(c.native, frame(4*i+uint32(j), write))
		}
	}
	return c
}

// step has the writer do something in one step, and returns what it cost.
func (c *tallied) step(request []byte) uint64 {
	return c.cost(func() { c.m.Receive(c.writer, request) })
}

// turns lets some turns pass, in which nothing is sent.
func (c *tallied) turns(n int) {
	for range n {
		c.m.Tick(c.m.clock.now)
		c.m.Resume()
	}
}

func set(key, value string) []byte { return wire.AppendSet(nil, wire.V, key, []byte(value)) }

func deleteKey(key string) []byte { return wire.AppendKey(nil, wire.V, wire.DeleteKey, key) }

// TestWaitsAreToldInTurns: that a key comes or goes takes bounded work, however many wait for it, and so does every turn until
// all of them know.
func TestWaitsAreToldInTurns(t *testing.T) {
	c := newTallied(attackersOf(20_000))
	const most = 2*sliceWork + 64
	for i := range 100 {
		for name, request := range map[string][]byte{
			"set": set("/a", "1"), "delete": deleteKey("/a"),
			"push": wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/a", nil),
		} {
			if work := c.step(request); work > most {
				t.Fatalf("round %d: a %s took %d units of work", i, name, work)
			}
		}
	}
	for turns := 0; c.m.Busy(); turns++ {
		c.m.Tick(c.m.clock.now)
		if work := c.cost(c.m.Resume); work > 2*heavyWork+sliceWork {
			t.Fatalf("a turn took %d units of work", work)
		}
		if turns > 1000 {
			t.Fatal("the machine never rests")
		}
	}
}

// TestWaitsAreAnsweredOnceWhateverComesBetween: keys come and go while the crowd is being told, at every turn. No client gets an
// answer that was never true, and in the end everybody has one.
func TestWaitsAreAnsweredOnceWhateverComesBetween(t *testing.T) {
	const each = 2000 // a turn tells some of them
	for first := range 4 {
		for second := range 4 {
			c := newTallied(each)
			answers := map[uint32][]string{} // by id
			collect := func() {
				c.flush()
				for got := []byte(c.take(c.native)); len(got) > 0; {
					id, size, _ := wire.ParseFrame(got)
					answers[id] = append(answers[id], string(got[:size]))
					got = got[size:]
				}
			}
			c.step(set("/a", "old"))
			c.turns(first)
			c.step(deleteKey("/a"))
			c.turns(second)
			c.step(set("/b", "b")) // both were never there together
			collect()
			for i := range uint32(each) {
				if len(answers[4*i]) != 1 || len(answers[4*i+1])+len(answers[4*i+3]) != 0 {
					t.Fatalf(
						"%d, %d turns: %d waits for a key that has been there are over, want 1; %d for keys that were never there "+
							"together, want 0",
						first, second, len(answers[4*i]), len(answers[4*i+1])+len(answers[4*i+3]))
				}
			}
			if n := len(c.take(c.torch)); n != each {
				t.Fatalf("%d, %d turns: %d of PyTorch's waits are over", first, second, n)
			}
			c.step(set("/a", "new"))
			collect()
			for i := range uint32(each) {
				for j, right := range []string{
					reply(4*i, 0, []byte{wire.StopWaiting}), reply(4*i+1, 0, []byte{wire.StopWaiting}),
					reply(4*i+2, 0, []byte(str("new"))), reply(4*i+3, 0, []byte(str("new")+str("b"))),
				} {
					got := answers[4*i+uint32(j)]
					if len(got) != 1 || got[0] != right && (j != 2 || got[0] != reply(4*i+2, 0, []byte(str("old")))) {
						t.Fatalf("%d, %d turns: wait %d of round %d has the answers %q", first, second, j, i, got)
					}
				}
			}
			if len(c.m.waits.byKey) != 0 || c.m.waits.n != 0 || c.m.Busy() {
				t.Fatalf("%d lists and %d waits are left, busy: %v", len(c.m.waits.byKey), c.m.waits.n, c.m.Busy())
			}
		}
	}
}

// TestAWaitLooksAtAllItsKeys: the last of the keys that a wait was told to be missing is there, but another one has gone, and the
// wait has not been told so yet.
func TestAWaitLooksAtAllItsKeys(t *testing.T) {
	b := newBench(workLimits)
	writer, crowd, c := b.dial(wire.V), b.dial(wire.Native), b.dial(wire.Native)
	b.send(writer, append(set("/a", "1"), set("/b", "1")...))
	for i := range uint32(4 * sliceWork) {
		b.send(crowd, frame(i, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, "/b", "/never") }))
	}
	b.m.Receive(writer, deleteKey("/b")) // the crowd is being told
	b.m.Receive(c, frame(1, func(f []byte) []byte { return wire.AppendKeys(f, wire.Native, wire.Wait, "/a", "/b") }))
	b.m.Receive(writer, append(deleteKey("/a"), set("/b", "1")...))
	if b.flush(); b.take(c) != "" {
		t.Fatal("a wait for two keys is over, and they were never there together since it began")
	}
	if b.send(writer, set("/a", "1")); b.take(c) != reply(1, 0, []byte{wire.StopWaiting}) {
		t.Error("a wait for two keys is not over, and both are there")
	}
}
