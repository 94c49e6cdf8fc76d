// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"bytes"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// FuzzDecode: members and envelopes are read, or refused, and what was read is written as it was.
func FuzzDecode(f *testing.F) {
	f.Add(encodeMembers(map[uint64]Member{3: {3, "a", "h:1", false}, 5: {5, "b", "h:2", true}}, []uint64{9}))
	f.Add(envelope{7, 300, []byte("x")}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		if all, removed, err := decodeMembers(data); err == nil {
			again, gone, err := decodeMembers(encodeMembers(all, removed))
			if err != nil || len(again) != len(all) || len(gone) != len(removed) {
				t.Errorf("%v becomes %v, %v", all, again, err)
			}
		}
		if e, err := decodeEnvelope(data); err == nil {
			if again, err := decodeEnvelope(e.encode()); err != nil || again.number != e.number || !bytes.Equal(again.payload, e.payload) {
				t.Errorf("%v becomes %v, %v", e, again, err)
			}
		}
	})
}

func aMachine(t *testing.T, members ...Member) *Machine {
	t.Helper()
	first, err := Bootstrap(members)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{ID: 1, Nonce: 1, SnapshotBytes: 1 << 20}, State{Snapshot: first})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestBrokenPeer: a message that contradicts the log ends the member, not the process.
func TestBrokenPeer(t *testing.T) {
	t.Parallel()
	m := aMachine(t, Member{ID: 1, Name: "a", Addr: "a:1"}, Member{ID: 2, Name: "b", Addr: "b:1"})
	m.Receive(&raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(3)), Commit: new(uint64(99)),
	})
	if m.Failed() == nil {
		t.Error("a leader that has committed what this member has never seen is believed")
	}
	m.Tick() // nothing happens any more
	if e := m.Effects(); len(e.Apply) > 0 {
		t.Errorf("%+v", e)
	}
}

// TestDamagedState: a log with a hole, or that ends before what was committed, is refused with what to do.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	first, err := Bootstrap([]Member{{ID: 1, Name: "a", Addr: "a:1"}})
	if err != nil {
		t.Fatal(err)
	}
	entry := func(index uint64) *raftpb.Entry { return &raftpb.Entry{Index: new(index), Term: new(uint64(2))} }
	for name, s := range map[string]State{
		"a hole": {Snapshot: first, Entries: []*raftpb.Entry{entry(2), entry(4)}},
		"too short": {
			Snapshot: first, Entries: []*raftpb.Entry{entry(2)}, Hard: &raftpb.HardState{Commit: new(uint64(3)), Term: new(uint64(2))},
		},
	} {
		if _, err := New(Config{ID: 1}, s); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestBadMembers: lists that cannot be those of a cluster are refused.
func TestBadMembers(t *testing.T) {
	t.Parallel()
	a := Member{ID: 1, Name: "a", Addr: "a:1"}
	for _, members := range [][]Member{nil, {a, a}, {{ID: 0, Name: "x", Addr: "x"}}, {{ID: 2, Addr: "x"}}, make([]Member, maxMembers+1)} {
		if _, err := Bootstrap(members); err == nil {
			t.Errorf("%v is accepted", members)
		}
	}
	m := aMachine(t, a)
	for range 2 * electionTicks {
		m.Tick()
		for _, w := range m.Effects().Write {
			m.Written(w.Number)
		}
	}
	for _, c := range []Change{
		{Add, a}, {Add, Member{ID: 5}}, {Promote, a}, {Remove, Member{ID: 7}}, {Remove, a}, {ChangeKind(9), a},
	} {
		m.Change(1, c)
		if refused := m.Effects().Refused; len(refused) != 1 || refused[0].Reason != BadChange || refused[0].Reason.String() == "" {
			t.Errorf("%+v: %+v", c, refused)
		}
	}
}
