// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

type progress = tracker.Progress

// Limits of a member list.
const (
	maxMembers = 16
	maxName    = 256 // bytes of a name or an address
	maxRemoved = 256 // members whose removal is remembered
)

const (
	// caughtUp is how many entries a learner may lack to become a voter.
	caughtUp = 64
	// changeTicks is when a change of members that has not happened is given up by the leader, so that another may be tried: raft drops
	// one that comes too early without a word.
	changeTicks = 3 * electionTicks
)

// Member is one of the cluster.
type Member struct {
	ID         uint64
	Name, Addr string
	Learner    bool // it receives everything, but has no vote yet
}

// ChangeKind says how the members change.
type ChangeKind byte

const (
	// Add takes in a member, as a learner; the leader makes it a voter when it has caught up.
	Add ChangeKind = iota + 1
	// Promote makes a learner a voter. The leader does it by itself.
	Promote
	// Remove removes a member.
	Remove
)

// Change is one change of the members. Remove and Promote need the ID only.
type Change struct {
	Kind   ChangeKind
	Member Member
}

// membership is who the members are, as of what was applied, and the change that the leader waits for.
type membership struct {
	all     map[uint64]Member
	removed []uint64
	state   *raftpb.ConfState

	under   uint64 // the number of the change under way
	waiting bool
	ticks   int
}

// Bootstrap is the snapshot that each of the first members begins with: they all have to be given the same list.
func Bootstrap(members []Member) (*raftpb.Snapshot, error) {
	if err := checkMembers(members); err != nil {
		return nil, err
	}
	state := &raftpb.ConfState{AutoLeave: new(false)}
	all := map[uint64]Member{}
	for _, m := range members {
		state.Voters = append(state.Voters, m.ID)
		all[m.ID] = m
	}
	slices.Sort(state.Voters)
	return &raftpb.Snapshot{
		Data:     encodeMembers(all, nil),
		Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(1)), Term: new(uint64(1)), ConfState: state},
	}, nil
}

func checkMembers(members []Member) error {
	if len(members) == 0 || len(members) > maxMembers {
		return fmt.Errorf("%d members: a cluster has between 1 and %d", len(members), maxMembers)
	}
	ids := map[uint64]bool{}
	for _, m := range members {
		if err := checkMember(m); err != nil {
			return err
		}
		if ids[m.ID] {
			return fmt.Errorf("two members have the id %x", m.ID)
		}
		ids[m.ID] = true
	}
	return nil
}

func checkMember(m Member) error {
	switch {
	case m.ID == raft.None || raft.IsLocalMsgTarget(m.ID):
		return fmt.Errorf("%x cannot be the id of a member", m.ID)
	case m.Name == "" || len(m.Name) > maxName || m.Addr == "" || len(m.Addr) > maxName:
		return fmt.Errorf("a member has a name and an address of at most %d bytes: %.300q at %.300q", maxName, m.Name, m.Addr)
	}
	return nil
}

// restore takes the members from a snapshot. A member that joins has none yet.
func (s *membership) restore(snap *raftpb.Snapshot) error {
	s.all, s.removed, s.state = map[uint64]Member{}, nil, snap.GetMetadata().GetConfState()
	if snap.GetMetadata().GetIndex() == 0 {
		return nil
	}
	all, removed, err := decodeMembers(snap.GetData())
	if err != nil {
		return fmt.Errorf("the members in the snapshot: %w", err)
	}
	s.all, s.removed = all, removed
	return nil
}

// Members are the members as of what was applied, sorted by their ids.
func (m *Machine) Members() []Member {
	all := slices.Collect(maps.Values(m.members.all))
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// voters are the ids of the members that vote, sorted.
func (m *Machine) voters() (ids []uint64) {
	for _, member := range m.Members() {
		if !member.Learner {
			ids = append(ids, member.ID)
		}
	}
	return ids
}

// Change asks for a change of the members. Its number comes back in Effects.Done or as refused.
func (m *Machine) Change(number uint64, c Change) {
	m.do(func() {
		reason, detail := m.mayPropose(), ""
		if reason == 0 {
			reason, detail = m.mayChange(c)
		}
		if reason == 0 && !m.proposeChange(number, c) {
			reason = Busy
		}
		if reason != 0 {
			m.refuse(number, reason, detail)
		}
	})
}

// mayChange refuses what would leave the cluster without a majority, and a second change before the first has happened.
func (m *Machine) mayChange(c Change) (Reason, string) {
	known, exists := m.members.all[c.Member.ID]
	switch c.Kind {
	case Add:
		if err := checkMember(c.Member); err != nil {
			return BadChange, err.Error()
		}
		for _, other := range m.Members() {
			if other.ID == c.Member.ID || other.Name == c.Member.Name || other.Addr == c.Member.Addr {
				return BadChange, fmt.Sprintf("member %s at %s exists already", other.Name, other.Addr)
			}
		}
		if len(m.members.all) >= maxMembers {
			return BadChange, fmt.Sprintf("a cluster has at most %d members", maxMembers)
		}
	case Promote:
		if !exists || !known.Learner {
			return BadChange, "it is not a learner"
		}
	case Remove:
		if !exists {
			return BadChange, "there is none with this id"
		}
		if detail := m.mayRemove(known); detail != "" {
			return BadChange, detail
		}
		if c.Member.ID == m.config.ID {
			m.transfer(raft.None) // the next leader removes this one
			return NotLeader, ""
		}
	default:
		return BadChange, fmt.Sprintf("unknown kind of change %d", c.Kind)
	}
	if m.members.waiting {
		return Busy, ""
	}
	return 0, ""
}

// mayRemove says why a member may not be removed: the others could not decide anything without it.
func (m *Machine) mayRemove(gone Member) string {
	if gone.Learner {
		return ""
	}
	others, active := 0, 0
	m.node.WithProgress(func(id uint64, typ raft.ProgressType, p progress) {
		if id == gone.ID || typ != raft.ProgressTypePeer {
			return
		}
		others++
		if p.RecentActive || id == m.config.ID {
			active++
		}
	})
	if active <= others/2 {
		return fmt.Sprintf("only %d of the other %d members answer: without this one there would be no majority", active, others)
	}
	return ""
}

func (m *Machine) proposeChange(number uint64, c Change) bool {
	kind := map[ChangeKind]raftpb.ConfChangeType{
		Add: raftpb.ConfChangeAddLearnerNode, Promote: raftpb.ConfChangeAddNode, Remove: raftpb.ConfChangeRemoveNode,
	}[c.Kind]
	err := m.node.ProposeConfChange(&raftpb.ConfChangeV2{
		Changes: []*raftpb.ConfChangeSingle{{Type: kind.Enum(), NodeId: new(c.Member.ID)}},
		Context: envelope{m.config.Nonce, number, appendMember([]byte{byte(c.Kind)}, c.Member)}.encode(),
	})
	if err != nil {
		return false
	}
	m.members.under, m.members.waiting, m.members.ticks = number, true, 0
	if number != 0 {
		m.proposals.pending = append(m.proposals.pending, number)
	}
	return true
}

// applyChange changes the members. Only ConfChangeV2 with one change is ever proposed.
func (m *Machine) applyChange(e *raftpb.Entry) {
	var cc raftpb.ConfChangeV2
	if err := proto.Unmarshal(e.GetData(), &cc); err != nil {
		panic(fmt.Sprintf("entry %d: %v", e.GetIndex(), err))
	}
	m.members.state = m.node.ApplyConfChange(&cc)
	env, err := decodeEnvelope(cc.GetContext())
	if err == nil {
		err = m.members.apply(env.payload)
	}
	if err != nil {
		panic(fmt.Sprintf("entry %d: %v", e.GetIndex(), err))
	}
	m.members.waiting = false
	m.out.Changed = true
	if env.nonce == m.config.Nonce && m.proposals.take(env.number) {
		m.out.Done = append(m.out.Done, env.number)
	}
}

func (s *membership) apply(payload []byte) error {
	if len(payload) == 0 {
		return errEnvelope
	}
	member, _, err := readMember(payload[1:])
	if err != nil {
		return err
	}
	switch ChangeKind(payload[0]) {
	case Add:
		member.Learner = true
		s.all[member.ID] = member
	case Promote:
		if known, ok := s.all[member.ID]; ok {
			known.Learner = false
			s.all[member.ID] = known
		}
	case Remove:
		delete(s.all, member.ID)
		s.removed = append(s.removed, member.ID)
		s.removed = s.removed[max(0, len(s.removed)-maxRemoved):]
	default:
		return errEnvelope
	}
	return nil
}

// tickMembers lets the leader promote a learner that has caught up, and forget a change that raft has dropped.
func (m *Machine) tickMembers() {
	if m.members.ticks++; m.members.waiting && m.members.ticks > changeTicks {
		m.members.waiting = false
		if m.proposals.take(m.members.under) {
			m.refuse(m.members.under, Deposed, "")
		}
	}
	if !m.isLeader() || m.full || m.members.waiting {
		return
	}
	if ready := m.readyLearner(); ready.ID != raft.None {
		m.proposeChange(0, Change{Promote, ready})
	}
}

// readyLearner is a learner that has nearly all that this leader has.
func (m *Machine) readyLearner() (ready Member) {
	var own uint64
	m.node.WithProgress(func(id uint64, _ raft.ProgressType, p progress) {
		if id == m.config.ID {
			own = p.Match
		}
	})
	m.node.WithProgress(func(id uint64, typ raft.ProgressType, p progress) {
		if typ == raft.ProgressTypeLearner && p.RecentActive && p.State == tracker.StateReplicate && p.Match+caughtUp >= own {
			ready = m.members.all[id]
		}
	})
	return ready
}
