// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Ticks of 100 ms make an election of one second. Shorter ones change leaders on a busy machine.
const (
	TickEvery      = 100 * time.Millisecond
	electionTicks  = 10
	heartbeatTicks = 1
)

// Limits of what raft keeps or sends at once.
const (
	maxAppend        = 1 << 20   // bytes of entries in a message
	maxInflight      = 256       // messages to one member that it has not answered
	maxInflightBytes = 64 << 20  // bytes of these
	maxUncommitted   = 256 << 20 // bytes of proposals that a majority does not have yet; one larger proposal is accepted alone
	maxReads         = 1 << 16   // reads that wait
)

// Config is what a machine needs to know.
type Config struct {
	// ID is the member's. No other member, living or removed, has it.
	ID uint64
	// Nonce tells the proposals of this run of the member from those of others: a random number.
	Nonce uint64
	// SnapshotBytes is how many bytes of commands are applied between two snapshots.
	SnapshotBytes int64
	// TrailBytes is how many bytes of commands before a snapshot are kept for members that are a little behind.
	TrailBytes int64
}

// State is what a member finds on its disk: the newest snapshot, and what was written after it.
type State struct {
	Snapshot *raftpb.Snapshot // without the replicated state itself
	Hard     *raftpb.HardState
	Entries  []*raftpb.Entry
}

// Machine is one member. It is not safe for concurrent use.
type Machine struct {
	config  Config
	node    *raft.RawNode
	storage storage
	out     Effects

	role, leader  uint64 // a raft.StateType, a member
	applied       uint64
	appliedTerm   uint64
	writes        []pendingWrite
	lastWrite     uint64
	full          bool
	failed        error
	proposals     proposals
	reads         reads
	election      election
	members       membership
	snapshotState snapshotState
}

// New returns a member that continues from what its disk has. The replicated state has to be that of the snapshot.
func New(c Config, s State) (m *Machine, err error) {
	defer recoverTo(&err)
	log, err := load(s)
	if err != nil {
		return nil, err
	}
	m = &Machine{config: c}
	m.storage = storage{log, m}
	m.applied, m.appliedTerm = s.Snapshot.GetMetadata().GetIndex(), s.Snapshot.GetMetadata().GetTerm()
	if err = m.members.restore(s.Snapshot); err != nil {
		return nil, err
	}
	m.snapshotState.restored(s.Snapshot)
	if m.applied == 1 && len(s.Entries) == 0 {
		m.election.quiet = electionTicks - 1 // a new cluster has no leader that could be disturbed
	}
	m.node, err = raft.NewRawNode(m.raftConfig())
	return m, err
}

func (m *Machine) raftConfig() *raft.Config {
	return &raft.Config{
		ID: m.config.ID, ElectionTick: electionTicks, HeartbeatTick: heartbeatTicks,
		Storage: m.storage, Applied: m.applied, AsyncStorageWrites: true,
		MaxSizePerMsg: maxAppend, MaxInflightMsgs: maxInflight, MaxInflightBytes: maxInflightBytes,
		MaxUncommittedEntriesSize: maxUncommitted,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    quiet{},
	}
}

// load fills raft's view of the log.
func load(s State) (*raft.MemoryStorage, error) {
	view := raft.NewMemoryStorage()
	hard := s.Hard
	if at := s.Snapshot.GetMetadata(); at.GetIndex() > 0 {
		if err := view.ApplySnapshot(s.Snapshot); err != nil {
			return nil, err
		}
		hard = covering(hard, at)
	}
	if err := checkEntries(s); err != nil {
		return nil, err
	}
	if err := view.Append(s.Entries); err != nil {
		return nil, err
	}
	return view, view.SetHardState(hard)
}

// covering returns the hard state of a member whose disk has a snapshot, but perhaps not yet what was written with it.
func covering(hard *raftpb.HardState, at *raftpb.SnapshotMetadata) *raftpb.HardState {
	term, vote := hard.GetTerm(), hard.GetVote()
	if term < at.GetTerm() {
		term, vote = at.GetTerm(), raft.None
	}
	return &raftpb.HardState{Term: &term, Vote: &vote, Commit: new(max(hard.GetCommit(), at.GetIndex()))}
}

// checkEntries refuses a log with a hole: what is missing was acknowledged.
func checkEntries(s State) error {
	next := s.Snapshot.GetMetadata().GetIndex() + 1
	for _, e := range s.Entries {
		if e.GetIndex() != next {
			return fmt.Errorf("the log has entry %d where %d is expected: it is damaged; remove this member and add it anew",
				e.GetIndex(), next)
		}
		next++
	}
	if commit := s.Hard.GetCommit(); commit >= next {
		return fmt.Errorf("the log ends at entry %d, but entry %d was committed: it is damaged; remove this member and add it anew",
			next-1, commit)
	}
	return nil
}

// Tick reports that TickEvery has passed.
func (m *Machine) Tick() {
	m.do(func() {
		m.node.Tick()
		m.tickElection()
		m.tickMembers()
	})
}

// Receive reports a message of another member. A message with a snapshot is reported when the snapshot itself has arrived.
func (m *Machine) Receive(msg *raftpb.Message) {
	m.do(func() {
		if !Acceptable(msg) || msg.GetTo() != m.config.ID {
			return
		}
		_ = m.node.Step(msg) // an error says that it was of no use
		m.heard(msg)
	})
}

// Full reports that the disk has no room, or has again. A leader that cannot write hands over to one that can.
func (m *Machine) Full(full bool) {
	m.do(func() {
		m.full = full
		if full && m.isLeader() {
			m.transfer(raft.None)
		}
	})
}

// Failed is why the machine cannot go on: its log contradicts that of the others. It does nothing any more.
func (m *Machine) Failed() error { return m.failed }

// do carries out an event. Raft panics where its own rules are broken, which a damaged disk can do: the member ends, not the process.
func (m *Machine) do(event func()) {
	if m.failed != nil {
		return
	}
	defer recoverTo(&m.failed)
	event()
	m.collect()
}

func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("raft cannot go on: %v: %w", r, errBroken)
	}
}

var errBroken = errors.New("the log of this member contradicts that of the others; remove the member and add it anew")

// quiet drops what raft logs: the driver reports changes itself.
type quiet struct{}

func (quiet) Debug(...any)            {}
func (quiet) Debugf(string, ...any)   {}
func (quiet) Error(...any)            {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Info(...any)             {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warning(...any)          {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Fatal(v ...any)          { panic(fmt.Sprint(v...)) }
func (quiet) Fatalf(f string, v ...any) {
	panic(fmt.Sprintf(f, v...))
}
func (quiet) Panic(v ...any) { panic(fmt.Sprint(v...)) }
func (quiet) Panicf(f string, v ...any) {
	panic(fmt.Sprintf(f, v...))
}
