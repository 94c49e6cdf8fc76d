// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/mutation"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// fleet is a machine that serves clients of all dialects, and others that follow its log.
type fleet struct {
	*bench
	r       *rand.Rand
	conns   []*Conn
	clears  int
	id      uint32
	commits []Entry

	sessions  []*fleetSession
	bySession map[*Conn]*fleetSession
}

var liveLimits = Limits{
	Limits: wire.Limits{Key: 64, Value: 6 << 10, Keys: 16, Request: 64 << 10}, Memory: 256 << 10, Output: 24 << 10, Waits: 6,
}

// followerLimits are those of machines that only follow: what they apply was accepted under other limits.
var followerLimits = Limits{
	Limits: wire.Limits{Key: 8, Value: 16, Keys: 2, Request: 64}, Memory: 1 << 10, Output: 64, Waits: 1,
}

func newFleet(seed uint64) *fleet {
	f := &fleet{bench: newLoggedBench(liveLimits), r: rand.New(rand.NewPCG(seed, 31)), bySession: map[*Conn]*fleetSession{}}
	f.sessions = newFleetSessions()
	f.m.config.Identity = func() (id Identity) {
		f.clears++
		id[0], id[1] = byte(f.clears), byte(f.clears>>8)
		return id
	}
	f.m.config.Forget = seed%3 == 0
	return f
}

func follower() *Machine { return New(Config{Limits: followerLimits, Logged: true, Server: 9}) }

// act lets something happen.
func (f *fleet) act() {
	switch n := f.r.IntN(100); {
	case len(f.conns) < 3 || n < 4 && len(f.conns) < 12:
		c := f.m.Open(fmt.Sprintf("10.0.0.%d:%d", f.r.IntN(2), f.r.IntN(100)), nil)
		switch f.r.IntN(3) {
		case 1:
			f.m.Receive(c, wire.AppendValidate(nil))
		case 2:
			f.m.Receive(c, wire.AppendUpgrade(wire.AppendValidate(nil)))
		}
		f.conns = append(f.conns, c)
	case n < 7:
		i := f.r.IntN(len(f.conns))
		f.m.Close(f.conns[i])
		f.conns = append(f.conns[:i], f.conns[i+1:]...)
	case n == 7 && f.r.IntN(8) == 0:
		f.m.ProposeClear(func(int, error) {})
	case n == 8:
		f.m.config.Server++
		f.m.ProposeRestart()
	case n == 9 && f.r.IntN(4) == 0:
		f.m.endAway(0)
	case n < 40:
		f.gatherCommands()
	case n < 60:
		f.advance()
	default:
		c := f.conns[f.r.IntN(len(f.conns))]
		f.m.Receive(c, f.request(c))
	}
	f.m.Tick(f.m.clock.now + 1e6)
}

// gatherCommands logs what has gathered; it is committed later.
func (f *fleet) gatherCommands() {
	for _, k := range f.m.Commands() {
		e := Entry{Index: uint64(len(f.log) + 1), Data: k.Data, Local: k}
		f.log, f.commits = append(f.log, e), append(f.commits, e)
	}
}

// advance commits some of what is logged, and some clients read.
func (f *fleet) advance() {
	n := f.r.IntN(len(f.commits) + 1)
	f.m.Commit(f.commits[:n])
	f.commits = f.commits[n:]
	f.m.Resume()
	f.m.Admit()
	for _, c := range f.m.Dirty() {
		if c.Cut() == nil && f.r.IntN(8) > 0 {
			f.m.Sent(c, c.Owed())
		} else if c.Cut() == nil {
			f.m.Touch(c)
		}
	}
}

// request is anything that a client may ask.
func (f *fleet) request(c *Conn) []byte {
	d := c.Dialect()
	if d == wire.Undetected {
		d = wire.Legacy
	}
	key := fmt.Sprint("k", f.r.IntN(6))
	value := bytes.Repeat([]byte{byte('0' + f.r.IntN(10))}, 1+f.r.IntN(1+f.r.IntN(6000)))
	if f.r.IntN(2) == 0 {
		value = value[:1]
	}
	ops := []wire.Op{
		wire.Set, wire.Set, wire.Append, wire.Append, wire.Add, wire.CompareSet, wire.Get, wire.MultiSet, wire.Wait, wire.DeleteKey,
		wire.Check,
	}
	if d != wire.Legacy {
		ops = append(ops, wire.QueuePush, wire.QueuePush, wire.QueuePop, wire.QueuePop, wire.Barrier, wire.ListKeys)
	}
	switch d {
	case wire.Native:
		ops = append(ops, wire.Hello, wire.Clear, claimOp, claimOp, claimOp, openOp, openOp, ackedOp, leaveOp, wire.CancelWait)
	case wire.Legacy:
		ops = append(ops, wire.WatchKey)
	default:
	}
	f.id++
	op := ops[f.r.IntN(len(ops))]
	body := func(b []byte) []byte { return f.body(b, d, op, key, value) }
	if d != wire.Native {
		return body(nil)
	}
	switch ofSession := f.sessionRequest(c, op, body); {
	case ofSession != nil && (op > claimOp || f.r.IntN(4) > 0):
		body = ofSession
	case op > claimOp:
		body = func(b []byte) []byte { return wire.AppendPlain(b, d, wire.ListKeys) }
	}
	return frame(f.id, body)
}

func (f *fleet) body(b []byte, d wire.Dialect, op wire.Op, key string, value []byte) []byte {
	switch op {
	case wire.Set, wire.Append:
		return wire.AppendKeyValue(b, d, op, key, value)
	case wire.QueuePush:
		return wire.AppendKeyValue(b, d, op, "q"+key, value)
	case wire.QueuePop:
		if d == wire.Native {
			return wire.AppendQueuePop(b, "q"+key, f.r.IntN(2) == 0)
		}
		return wire.AppendKey(b, d, op, "q"+key)
	case wire.Add:
		return wire.AppendAdd(b, d, "n"+key, int64(f.r.IntN(4)))
	case wire.Barrier:
		return wire.AppendBarrier(b, d, "b"+key, int64(f.r.IntN(5)))
	case wire.CompareSet:
		return wire.AppendCompareSet(b, d, key, value[:f.r.IntN(2)], value)
	case wire.MultiSet:
		return wire.AppendMultiSet(b, d, []string{key, "k1", key + "m"}, [][]byte{value, value[:1], value})
	case wire.Wait, wire.Check:
		return wire.AppendKeys(b, d, op, key, "k2")
	case wire.ListKeys:
		return wire.AppendPlain(b, d, op)
	case wire.CancelWait:
		return wire.AppendCancel(b, f.id-uint32(f.r.IntN(30)))
	case wire.Hello:
		return wire.AppendHello(b, nil)
	case wire.Clear:
		id := f.m.Identity()
		return wire.AppendClear(b, id[:len(id)*(1-min(f.r.IntN(60), 1))])
	case claimOp:
		name := fmt.Sprint("rank/", f.r.IntN(5))
		var have []byte
		if held := f.m.claims.byName[name]; held != nil {
			have = held.text
		}
		return wire.AppendCompareSet(b, d, wire.ClaimPrefix+name, have, value[:min(len(value), 9)])
	default:
		return wire.AppendKey(b, d, op, key)
	}
}

// claimOp stands for a COMPARE_SET that claims a name.
const claimOp = wire.OpLimit

// TestDeterminism: machines that apply the same commands hold the same: the one that serves clients, one that begins with nothing, has
// other limits and no clients, and one that is restored from an image, which was made while commands were applied.
func TestDeterminism(t *testing.T) {
	applied, images := 0, 0
	for seed := range seeds.Range(150) {
		f := newFleet(seed)
		image, index := f.live(t, seed)
		follows := follower()
		replay(t, follows, f.log)
		restored := follower()
		if err := restored.Restore(index, bytes.NewReader(image)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		replay(t, restored, f.log[index:])
		want := f.m.Hash()
		if got := follows.Hash(); got != want {
			t.Fatalf("seed %d: after %d commands the one that replays all holds %x, want %x", seed, len(f.log), got, want)
		}
		if got := restored.Hash(); got != want {
			t.Fatalf("seed %d: after %d commands the one that was restored at %d holds %x, want %x", seed, len(f.log), index, got, want)
		}
		if follows.admission.waits < 0 || follows.admission.out != 0 || f.m.admission.logged != 0 || f.m.admission.promised != 0 {
			t.Fatalf("seed %d: sums are left: %+v", seed, follows.admission)
		}
		applied += len(f.log)
		images += len(image)
	}
	t.Logf("%d commands, %d bytes of images", applied, images)
	if applied < 5000 {
		t.Errorf("only %d commands", applied)
	}
}

// live serves clients for a while and returns an image that was begun half-way.
func (f *fleet) live(t *testing.T, seed uint64) (image []byte, index uint64) {
	t.Helper()
	var making *Image
	for step := range 600 {
		f.act()
		switch {
		case step == 300:
			making = f.m.BeginImage()
			index = making.Index
		case making != nil && f.r.IntN(20) == 0:
			part, more := making.Next()
			if image = append(image, part...); !more {
				making = nil
			}
		}
	}
	for more := making != nil; more; {
		var part []byte
		part, more = making.Next()
		image = append(image, part...)
	}
	for range 1000 { // to the end of what is under way
		f.gatherCommands()
		f.m.Commit(f.commits)
		f.commits = nil
		f.m.Tick(f.m.clock.now + 1e6)
		f.m.Resume()
		if f.m.log.flying == 0 && !f.m.mayGoOn() {
			break
		}
	}
	if n, waiting, broken := f.m.Applied(); broken != nil || waiting > 0 || n != uint64(len(f.log)) || f.m.log.flying > 0 {
		t.Fatalf("seed %d: %d of %d commands are applied, %d wait, %d under way: %v", seed, n, len(f.log), waiting, f.m.log.flying, broken)
	}
	return image, index
}

func replay(t *testing.T, m *Machine, log []Entry) {
	t.Helper()
	for _, e := range log {
		if err := m.Replay(Entry{Index: e.Index, Data: e.Data}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMutants: the tests find each rule that is left out.
func TestMutants(t *testing.T) { mutation.Found(t) }
