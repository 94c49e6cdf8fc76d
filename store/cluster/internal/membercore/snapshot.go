// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"errors"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// snapshotState decides when a snapshot is due.
type snapshotState struct {
	bytes  int64 // of commands applied since the last snapshot
	limit  int64 // the size of the last snapshot: a larger state is written less often
	under  bool  // one is being written
	newest uint64
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
	if s.under || s.bytes < max(m.config.SnapshotBytes, s.limit) || m.installing() {
		return
	}
	s.under, s.bytes = true, 0
	m.out.Capture = &raftpb.Snapshot{
		Data:     encodeMembers(m.members.all),
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
	for i := len(entries) - 1; i >= 0; i-- {
		if kept += int64(len(entries[i].GetData())) + entryCost; kept > m.config.TrailBytes {
			if err = m.storage.Compact(entries[i].GetIndex()); err != nil && !errors.Is(err, raft.ErrCompacted) {
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
