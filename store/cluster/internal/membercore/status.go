// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Status is what a member knows of itself and, if it leads, of the others.
type Status struct {
	ID, Leader uint64 // Leader is zero if it is not known
	Term       uint64
	Leading    bool
	// Removed: the members do not include this one any more.
	Removed   bool
	Applied   uint64
	Committed uint64
	Snapshot  uint64            // the index of the newest snapshot
	Matched   map[uint64]uint64 // at the leader, up to which entry each member has everything
	Members   []Member
	Gone      []uint64 // members that were removed
}

// Status describes the member.
func (m *Machine) Status() Status {
	s := m.node.BasicStatus()
	out := Status{
		ID: m.config.ID, Leader: s.Lead, Term: s.GetTerm(), Leading: m.isLeader(), Removed: m.removed(),
		Applied: m.applied, Committed: s.GetCommit(), Snapshot: m.snapshotState.newest, Members: m.Members(), Gone: m.members.removed,
	}
	if out.Leading {
		out.Matched = map[uint64]uint64{}
		m.node.WithProgress(func(id uint64, _ raft.ProgressType, p progress) { out.Matched[id] = p.Match })
	}
	return out
}

// Leading reports whether this member leads, and who does otherwise; zero: it does not know.
func (m *Machine) Leading() (self bool, leader uint64) { return m.isLeader(), m.leader }

// removed reports whether the member has seen that it was removed.
func (m *Machine) removed() bool {
	_, member := m.members.all[m.config.ID]
	return !member && len(m.members.all) > 0
}

// Acceptable reports whether a message is one that members send each other.
func Acceptable(msg *raftpb.Message) bool {
	typ := msg.GetType()
	return !raft.IsLocalMsg(typ) && typ != raftpb.MsgProp && typ != raftpb.MsgReadIndex && typ != raftpb.MsgTransferLeader &&
		typ != raftpb.MsgForgetLeader
}
