// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"errors"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// snapshotState decides when a snapshot is due.
type snapshotState struct {
	bytes  int64 // of commands applied since the last snapshot
	limit  int64 // the size of the last snapshot: a larger state is written less often
	under  bool  // one is being written
	wanted bool  // a member needs one that the present one cannot replace
	newest uint64
}

// storage is raft's view of the log. The snapshot that it offers is on the disk, and has to name the member that it is for: a member
// does not accept one that was made before it was added.
type storage struct {
	*raft.MemoryStorage

	m *Machine
}

// Snapshot asks for a new snapshot if the present one lacks a member; raft asks again.
func (s storage) Snapshot() (*raftpb.Snapshot, error) {
	snap, err := s.MemoryStorage.Snapshot()
	if err != nil {
		return nil, err
	}
	state := snap.GetMetadata().GetConfState()
	for id := range s.m.members.all {
		if !slices.Contains(state.GetVoters(), id) && !slices.Contains(state.GetLearners(), id) {
			s.m.snapshotState.wanted = true
			return nil, raft.ErrSnapshotTemporarilyUnavailable
		}
	}
	return snap, nil
}

// entryCost is what an entry takes in memory and in the log beside its bytes.
const entryCost = 128

func (s *snapshotState) count(e *raftpb.Entry) { s.bytes += int64(len(e.GetData())) + entryCost }

func (s *snapshotState) restored(snap *raftpb.Snapshot) {
	s.newest, s.bytes = snap.GetMetadata().GetIndex(), 0
}

// capture asks for a snapshot if enough was applied since the last one.
func (m *Machine) capture() {
	s := &m.snapshotState
	due := s.wanted || s.bytes >= max(m.config.SnapshotBytes, s.limit)
	if !due || s.under || m.applied <= s.newest || m.installing() || m.failed != nil {
		return
	}
	s.under, s.wanted, s.bytes = true, false, 0
	m.out.Capture = &raftpb.Snapshot{
		Data:     encodeMembers(m.members.all, m.members.removed),
		Metadata: &raftpb.SnapshotMetadata{Index: new(m.applied), Term: new(m.appliedTerm), ConfState: m.members.state},
	}
}

// installing reports whether a received snapshot is on its way to the disk: it will replace the state.
func (m *Machine) installing() bool {
	for _, w := range m.writes {
		if w.Install != nil {
			return true
		}
	}
	return false
}

// Installs reports whether a received snapshot is wanted: it is to be written, or being written.
func (m *Machine) Installs(index uint64) bool {
	for _, w := range m.writes {
		if w.Install != nil && w.Install.GetMetadata().GetIndex() == index {
			return true
		}
	}
	return false
}

// SnapshotTaken reports that a captured snapshot of so many bytes is on disk, and all that the log needs after it. With ok false it
// could not be written.
func (m *Machine) SnapshotTaken(snap *raftpb.Snapshot, size int64, ok bool) {
	m.do(func() {
		s := &m.snapshotState
		s.under = false
		index := snap.GetMetadata().GetIndex()
		if !ok || index <= s.newest {
			return
		}
		s.newest, s.limit = index, size
		if _, err := m.storage.CreateSnapshot(index, snap.GetMetadata().GetConfState(), snap.GetData()); err != nil {
			panic(err)
		}
		m.compact(index)
	})
}

// compact drops the entries before a snapshot, except for the last ones, which members that are a little behind need.
func (m *Machine) compact(index uint64) {
	first, err := m.storage.FirstIndex()
	if err != nil || first > index {
		return
	}
	entries, err := m.storage.Entries(first, index+1, 1<<62)
	if err != nil {
		panic(err)
	}
	kept := int64(0)
	for _, e := range slices.Backward(entries) {
		if kept += int64(len(e.GetData())) + entryCost; kept > m.config.TrailBytes {
			if err = m.storage.Compact(e.GetIndex()); err != nil && !errors.Is(err, raft.ErrCompacted) {
				panic(err)
			}
			return
		}
	}
}

// SnapshotSent reports whether a message of Effects.SendSnapshot and its snapshot were received.
func (m *Machine) SnapshotSent(to uint64, ok bool) {
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	m.do(func() { m.node.ReportSnapshot(to, status) })
}

// restored takes over a snapshot that the disk has now.
func (m *Machine) restored(snap *raftpb.Snapshot) error {
	m.snapshotState.restored(snap)
	m.applied, m.appliedTerm = snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm()
	m.out.Restore = snap
	m.out.Changed = true
	return m.members.restore(snap)
}
