// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"encoding/binary"
	"slices"

	"go.etcd.io/raft/v3"
)

// reads decides when the state of this member is new enough to be read. The leader asks a majority whether it is still the leader, once
// for all reads that have come in the meantime, and serves them when it has applied what was committed when it asked.
type reads struct {
	waiting   []uint64 // numbers that no round has taken yet
	round     uint64   // the last round begun
	asked     []uint64 // the numbers of the round under way
	confirmed []confirmedRead
}

type confirmedRead struct {
	index   uint64
	numbers []uint64
}

// Read asks for a moment at which the replicated state is at least as new as now: its number comes back in Effects.Reads or as refused.
func (m *Machine) Read(number uint64) {
	m.do(func() {
		switch {
		case !m.isLeader():
			m.refuse(number, NotLeader, "")
		case len(m.reads.waiting) >= maxReads:
			m.refuse(number, Busy, "")
		default:
			m.reads.waiting = append(m.reads.waiting, number)
		}
		m.beginReads()
	})
}

// beginReads begins a round, unless one is under way. What was committed before this leader's term is known to it only when it has
// applied an entry of its own term: raft does not wait for that if there is one member.
func (m *Machine) beginReads() {
	r := &m.reads
	if len(r.waiting) == 0 || len(r.asked) > 0 || !m.isLeader() || m.appliedTerm != m.election.term {
		return
	}
	r.round++
	r.asked, r.waiting = r.waiting, nil
	m.node.ReadIndex(binary.LittleEndian.AppendUint64(nil, r.round))
}

// confirmReads takes what a majority has confirmed.
func (m *Machine) confirmReads(states []raft.ReadState) {
	r := &m.reads
	for _, s := range states {
		if len(s.RequestCtx) == 8 && binary.LittleEndian.Uint64(s.RequestCtx) == r.round && len(r.asked) > 0 {
			r.confirmed = append(r.confirmed, confirmedRead{s.Index, r.asked})
			r.asked = nil
		}
	}
}

// serveReads releases the reads whose index has been applied.
func (m *Machine) serveReads() {
	r := &m.reads
	for len(r.confirmed) > 0 && r.confirmed[0].index <= m.applied {
		m.out.Reads = append(m.out.Reads, r.confirmed[0].numbers...)
		r.confirmed = r.confirmed[1:]
	}
}

// drain empties the reads.
func (r *reads) drain() (all []uint64) {
	all = slices.Concat(r.waiting, r.asked)
	for _, c := range r.confirmed {
		all = append(all, c.numbers...)
	}
	*r = reads{round: r.round}
	return all
}
