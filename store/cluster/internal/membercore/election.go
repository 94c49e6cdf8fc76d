// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// rankDelay is between the campaigns of two members that lose their leader at the same time, so that the first has won by then.
const rankDelay = 40 * time.Millisecond

// maxHurry is how often a member campaigns after a broken connection before it leaves it to the clock.
const maxHurry = 10

// election begins campaigns earlier than raft's own clock, whose limit is random: between one and two seconds. All of them ask first
// whether others have lost the leader too (PreVote), so that one that is wrong disturbs none.
type election struct {
	term  uint64
	quiet int // ticks since the leader was heard
	hurry int // campaigns to try, 0: the leader is known, or the clock decides
}

// PeerBroken reports that the connection with another member has broken, and that it cannot be reached at the moment. If that was the
// leader, its process is probably dead: the members campaign one after the other, without waiting for the clock.
func (m *Machine) PeerBroken(id uint64) {
	m.do(func() {
		if m.isLeader() {
			m.node.ReportUnreachable(id)
			return
		}
		if id != m.leader || id == raft.None {
			return
		}
		_ = m.node.ForgetLeader()
		m.election.hurry = maxHurry
		m.wakeAfter(m.rank(id))
	})
}

// Wake reports that the time of Effects.Wake has passed.
func (m *Machine) Wake() {
	m.do(func() {
		if m.election.hurry == 0 || m.leader != raft.None {
			return
		}
		m.election.hurry--
		m.campaign()
		m.wakeAfter(len(m.voters()))
	})
}

func (m *Machine) wakeAfter(ranks int) {
	m.out.Wake = max(time.Duration(ranks)*rankDelay, time.Millisecond)
}

// tickElection campaigns when the leader has been silent for an election, the members one after the other.
func (m *Machine) tickElection() {
	e := &m.election
	if e.quiet++; m.isLeader() || e.quiet <= electionTicks+m.rank(m.leader) {
		return
	}
	e.quiet = electionTicks - len(m.voters())
	m.campaign()
}

// campaign asks for votes, unless a vote is under way that others may have given already.
func (m *Machine) campaign() {
	state := m.node.BasicStatus().RaftState
	if !m.full && (state == raft.StateFollower || state == raft.StatePreCandidate) {
		_ = m.node.Campaign()
	}
}

// heard notices signs of the leader and votes given, which put off a campaign.
func (m *Machine) heard(msg *raftpb.Message) {
	s := m.node.BasicStatus()
	switch msg.GetType() { //nolint:exhaustive // the others say nothing
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		if s.Lead == msg.GetFrom() {
			m.election.quiet = 0
		}
	case raftpb.MsgVote:
		if s.GetVote() == msg.GetFrom() && s.GetTerm() == msg.GetTerm() {
			m.election.quiet = 0
		}
	}
}

// rank is this member's place among the voters without the one that was lost.
func (m *Machine) rank(lost uint64) int {
	others := slices.DeleteFunc(m.voters(), func(id uint64) bool { return id == lost })
	return max(slices.Index(others, m.config.ID), 0)
}

// Transfer hands the lead to another member, the one with the longest log if to is zero. It takes a moment, and may fail.
func (m *Machine) Transfer(to uint64) {
	m.do(func() { m.transfer(to) })
}

func (m *Machine) transfer(to uint64) {
	if !m.isLeader() {
		return
	}
	if to == raft.None {
		to = m.successor()
	}
	if to != raft.None && to != m.config.ID {
		m.node.TransferLeader(to)
	}
}

// successor is the voter with the longest log among those that answer.
func (m *Machine) successor() (best uint64) {
	var longest uint64
	m.node.WithProgress(func(id uint64, typ raft.ProgressType, p progress) {
		if id != m.config.ID && typ == raft.ProgressTypePeer && p.RecentActive && p.Match >= longest {
			best, longest = id, p.Match
		}
	})
	return best
}
