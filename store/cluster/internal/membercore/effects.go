// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Effects is what a driver has to do after events, before it reports the next one. Restore comes before Apply, Apply before Reads and
// Capture. Everything else may be done in any order, and later, but writes in the order in which they were given.
type Effects struct {
	// Send are messages to other members. Each may be lost.
	Send []*raftpb.Message
	// SendSnapshot are messages that need the newest snapshot beside them: it is sent, and SnapshotSent called in any case.
	SendSnapshot []*raftpb.Message
	// Write is to be written in this order; Written is called when it is on disk.
	Write []Write
	// Restore: the replicated state becomes that of the installed snapshot.
	Restore *raftpb.Snapshot
	// Apply are committed commands for the replicated state.
	Apply []Command
	// Done are the numbers of changes of members that have happened.
	Done []uint64
	// Reads are the numbers of reads that may be served from the replicated state.
	Reads []uint64
	// Refused are proposals, changes and reads that came to nothing, or whose outcome this member will not learn.
	Refused []Refusal
	// Capture: a snapshot of the replicated state as it is after Apply is to be written; then SnapshotTaken is called.
	Capture *raftpb.Snapshot
	// Wake: call Wake after this time, in place of a time given before; zero changes nothing.
	Wake time.Duration
	// Led: the leader of this member, or its term or role, has changed.
	Led bool
	// Changed: the members have changed.
	Changed bool
}

// Write is what has to be on disk before the machine may answer for it.
type Write struct {
	Number uint64
	// Install: the snapshot received takes the place of all that was written before.
	Install *raftpb.Snapshot
	// Hard replaces the hard state, unless nil.
	Hard *raftpb.HardState
	// Entries replace all entries from the first of them on.
	Entries []*raftpb.Entry
	// Sync: Written may be called only when this and all before it have been synced.
	Sync bool
}

// Command is a committed command. Number is that of the proposal if this run of the member has proposed it, otherwise zero.
type Command struct {
	Index   uint64
	Number  uint64
	Payload []byte
}

// pendingWrite is a write that is not yet on disk, and what waits for it.
type pendingWrite struct {
	Write

	then []*raftpb.Message
}

// Effects returns what is to be done since the last call.
func (m *Machine) Effects() Effects {
	m.capture() // here, so that it has all that is to be applied
	out := m.out
	m.out = Effects{}
	return out
}

// Written reports that all writes up to a number are on disk.
func (m *Machine) Written(number uint64) {
	m.do(func() {
		for len(m.writes) > 0 && m.writes[0].Number <= number {
			w := m.writes[0]
			m.writes = m.writes[1:]
			m.store(w.Write)
			m.deliver(w.then)
			m.collect()
		}
	})
}

// store makes raft's view of the log what the disk has.
func (m *Machine) store(w Write) {
	var err error
	if w.Install != nil {
		if err = m.storage.ApplySnapshot(w.Install); err == nil {
			err = m.restored(w.Install)
		}
	}
	if err == nil && w.Hard != nil {
		err = m.storage.SetHardState(w.Hard)
	}
	if err == nil {
		err = m.storage.Append(w.Entries)
	}
	if err != nil {
		panic(err)
	}
}

// deliver passes on the messages that waited for a write.
func (m *Machine) deliver(messages []*raftpb.Message) {
	for _, msg := range messages {
		if msg.GetTo() == m.config.ID {
			_ = m.node.Step(msg) // what is out of date is ignored
		} else {
			m.out.Send = append(m.out.Send, msg)
		}
	}
}

// collect turns what raft wants into effects, until it wants nothing more.
func (m *Machine) collect() {
	for m.node.HasReady() {
		ready := m.node.Ready()
		m.lead()
		m.confirmReads(ready.ReadStates)
		for _, msg := range ready.Messages {
			m.dispatch(msg)
		}
		m.beginReads()
	}
	m.serveReads()
}

func (m *Machine) dispatch(msg *raftpb.Message) {
	switch {
	case msg.GetTo() == raft.LocalAppendThread:
		m.write(msg)
	case msg.GetTo() == raft.LocalApplyThread:
		m.apply(msg)
	case msg.GetType() == raftpb.MsgSnap:
		m.out.SendSnapshot = append(m.out.SendSnapshot, msg)
	default:
		m.out.Send = append(m.out.Send, msg)
	}
}

func (m *Machine) write(msg *raftpb.Message) {
	m.lastWrite++
	w := Write{Number: m.lastWrite, Entries: msg.GetEntries(), Sync: len(msg.GetResponses()) > 0}
	if msg.GetTerm() != 0 || msg.GetVote() != 0 || msg.GetCommit() != 0 {
		w.Hard = &raftpb.HardState{Term: new(msg.GetTerm()), Vote: new(msg.GetVote()), Commit: new(msg.GetCommit())}
	}
	if !raft.IsEmptySnap(msg.GetSnapshot()) {
		w.Install = msg.GetSnapshot()
	}
	m.writes = append(m.writes, pendingWrite{w, msg.GetResponses()})
	m.out.Write = append(m.out.Write, w)
}

// apply takes committed entries. The driver applies the commands before it reports another event: for raft they are applied.
func (m *Machine) apply(msg *raftpb.Message) {
	for _, e := range msg.GetEntries() {
		m.applied, m.appliedTerm = e.GetIndex(), e.GetTerm()
		m.snapshotState.count(e)
		if e.GetType() == raftpb.EntryNormal {
			m.applyCommand(e)
		} else {
			m.applyChange(e)
		}
	}
	m.deliver(msg.GetResponses())
}

// lead notices a change of leader, role or term.
func (m *Machine) lead() {
	s := m.node.BasicStatus()
	role, leader := uint64(s.RaftState), s.Lead
	if role == m.role && leader == m.leader && s.GetTerm() == m.election.term {
		return
	}
	wasLeader := m.isLeader() && (role != m.role || s.GetTerm() != m.election.term)
	m.role, m.leader, m.election.term = role, leader, s.GetTerm()
	m.out.Led = true
	if wasLeader {
		m.refuseAll(Deposed)
	}
	if leader != raft.None {
		m.election.hurry = 0
	}
	if m.isLeader() && m.full {
		m.transfer(raft.None)
	}
}

func (m *Machine) isLeader() bool { return m.role == uint64(raft.StateLeader) }
