// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// Reason is why a proposal, a change of members or a read was refused.
type Reason int

const (
	// NotLeader says: only the leader takes proposals and reads. Nothing was done.
	NotLeader Reason = iota + 1
	// Deposed says: this member lost the lead. A proposal may still be carried out.
	Deposed
	// Busy says: too much waits already, or the lead is being handed over. Nothing was done.
	Busy
	// DiskFull says: this member's disk is full, and no other has taken the lead yet. Nothing was done.
	DiskFull
	// BadChange says: the members cannot be changed in this way. Nothing was done.
	BadChange
)

func (r Reason) String() string {
	switch r {
	case NotLeader:
		return "this member is not the leader"
	case Deposed:
		return "this member has lost the lead"
	case Busy:
		return "too many requests wait, or the lead is being handed over"
	case DiskFull:
		return "the disk is full"
	case BadChange:
		return "the members cannot be changed in this way"
	}
	return fmt.Sprintf("reason %d", int(r))
}

// Refusal says that a proposal, a change or a read came to nothing.
type Refusal struct {
	Number uint64
	Reason Reason
	Detail string // for BadChange
}

// proposals are the numbers of those that wait for their commit.
type proposals struct{ pending []uint64 }

func (p *proposals) take(number uint64) bool {
	i := slices.Index(p.pending, number)
	if i < 0 {
		return false
	}
	p.pending = slices.Delete(p.pending, i, i+1)
	return true
}

// Propose asks for a command to be replicated. Numbers are not used twice, and are not zero. The command comes back in Effects.Apply
// with its number, or a refusal does.
func (m *Machine) Propose(number uint64, payload []byte) {
	m.do(func() {
		if reason := m.mayPropose(); reason != 0 {
			m.refuse(number, reason, "")
			return
		}
		if m.node.Propose(envelope{m.config.Nonce, number, payload}.encode()) != nil {
			m.refuse(number, Busy, "")
			return
		}
		m.proposals.pending = append(m.proposals.pending, number)
	})
}

func (m *Machine) mayPropose() Reason {
	switch {
	case !m.isLeader():
		return NotLeader
	case m.full:
		return DiskFull
	}
	return 0
}

func (m *Machine) refuse(number uint64, reason Reason, detail string) {
	m.out.Refused = append(m.out.Refused, Refusal{number, reason, detail})
}

// refuseAll refuses everything that waits.
func (m *Machine) refuseAll(reason Reason) {
	for _, number := range m.proposals.pending {
		m.refuse(number, reason, "")
	}
	m.proposals.pending = nil
	for _, number := range m.reads.drain() {
		m.refuse(number, reason, "")
	}
}

// applyCommand passes on a command. Raft begins each term with an entry that has none.
func (m *Machine) applyCommand(e *raftpb.Entry) {
	if len(e.GetData()) == 0 {
		return
	}
	env, err := decodeEnvelope(e.GetData())
	if err != nil {
		panic(fmt.Sprintf("entry %d: %v", e.GetIndex(), err))
	}
	c := Command{Index: e.GetIndex(), Payload: env.payload}
	if env.nonce == m.config.Nonce && m.proposals.take(env.number) {
		c.Number = env.number
	}
	m.out.Apply = append(m.out.Apply, c)
}

// envelope is what an entry holds: the payload, and which run of which member proposed it.
type envelope struct {
	nonce, number uint64
	payload       []byte
}

// envelopeFormat is the first byte of an entry, so that later formats can be told from this one.
const envelopeFormat = 1

func (e envelope) encode() []byte {
	b := make([]byte, 0, 1+8+binary.MaxVarintLen64+len(e.payload))
	b = append(b, envelopeFormat)
	b = binary.LittleEndian.AppendUint64(b, e.nonce)
	b = binary.AppendUvarint(b, e.number)
	return append(b, e.payload...)
}

var errEnvelope = errors.New("it is malformed, or of a newer version of this program")

func decodeEnvelope(b []byte) (e envelope, err error) {
	if len(b) < 10 || b[0] != envelopeFormat {
		return e, errEnvelope
	}
	e.nonce = binary.LittleEndian.Uint64(b[1:])
	number, n := binary.Uvarint(b[9:])
	if n <= 0 {
		return e, errEnvelope
	}
	e.number, e.payload = number, b[9+n:]
	return e, nil
}
