// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
)

// digest stands for what was encoded: equal for equal, and, but for a collision of 128 bits, only for that. Zero stands for nothing.
type digest [2]uint64

func (e *encoder) digest() digest {
	return digest{maphash.Bytes(hashSeeds[0], *e), maphash.Bytes(hashSeeds[1], *e)}
}

// key is equal for equal states and only for those. A step changes one or two machines and packets: the digests of the others are those
// of the state before it. b is memory to work with.
func (s *state) key(b *encoder) digest {
	var machines [len(s.m)]digest
	for w, c := range s.m {
		if c == nil {
			continue
		}
		if c.digest == (digest{}) {
			*b = (*b)[:0]
			c.encode(b)
			c.digest = b.digest()
		}
		machines[w] = c.digest
	}
	packets := make([]digest, len(s.net))
	for i := range s.net {
		p := &s.net[i]
		if p.digest == (digest{}) {
			*b = (*b)[:0]
			p.encode(b)
			p.digest = b.digest()
		}
		packets[i] = p.digest
	}
	slices.SortFunc(packets, func(x, y digest) int { return slices.Compare(x[:], y[:]) }) // they are not in any order
	*b = (*b)[:0]
	for _, d := range machines {
		b.num(d[:]...)
	}
	b.num(uint64(len(packets)))
	for _, d := range packets {
		b.num(d[:]...)
	}
	shared := []byte(s.shared)
	slices.Sort(shared)
	*b = append(*b, shared...)
	b.num(uint64(s.local), uint64(s.dup), uint64(s.timeout), uint64(s.lose), uint64(s.refuse), uint64(s.forge), uint64(s.crashes))
	b.flags(s.freed, s.split, s.valued)
	for w := wO; w <= wD; w++ {
		b.flags(s.crashed[w], s.known[[2]Worker{wO, w}], s.known[[2]Worker{wA, w}], s.known[[2]Worker{wC, w}], s.known[[2]Worker{wD, w}])
	}
	return b.digest()
}

func (p *packet) encode(e *encoder) {
	*e = append(*e, p.what...)
	*e = append(*e, p.target...)
	e.num(uint64(p.from), uint64(p.to), p.frame.First, uint64(p.frame.Session), p.frame.Floor, uint64(p.frame.Epoch),
		uint64(p.frame.ToEpoch))
	e.messages(p.msg)
	e.messages(p.frame.Msgs...)
	e.ids(p.wire.ID, p.wire.Fork, p.wire.Root)
	e.num(uint64(p.wire.Owner), uint64(p.wire.OwnerEpoch), uint64(p.wire.Parent))
	*e = append(*e, p.wire.Key[:]...)
}

// encode writes everything that decides what a machine will do, except for the time, which stands still here.
// TestKeyKnowsAllFields fails when a new field is missing here.
func (m *Machine) encode(b *encoder) {
	b.num(m.next)
	for _, id := range sortedKeys(m.objects) {
		o := m.objects[id]
		b.num(201)
		b.ids(id, o.root)
		*b = append(append(*b, o.creatorKey[:]...), o.ownKey[:]...)
		for w := wO; w <= wD; w++ {
			b.flags(o.open[w])
		}
		b.flags(o.valued, o.called, o.former, o.cancelled)
		b.num(uint64(o.local))
		holders := map[ID]life{}
		for id, f := range o.forks.all() {
			holders[id] = f.life
		}
		b.lives(holders)
		b.lives(o.offers)
	}
	for _, id := range sortedKeys(m.handles) {
		h := m.handles[id]
		b.num(203)
		b.ids(id, h.id, h.root)
		*b = append(*b, h.key[:]...)
		b.num(uint64(h.owner), uint64(h.ownerEpoch), uint64(h.parent.worker), uint64(h.parent.epoch), uint64(h.state), uint64(h.code))
		b.flags(h.creator, h.held, h.offered, h.accepting, h.deletable, h.unanswered, h.lost)
		b.lives(h.children)
	}
	for id := wO; id <= wD; id++ {
		p := m.peers[id]
		if p == nil {
			continue
		}
		b.num(204, uint64(p.kind), uint64(p.epoch), p.announced, uint64(p.session), p.floor, uint64(p.lease.state), uint64(p.early))
		b.flags(p.lease.certain, p.lease.expiredTo, p.stream.owesAck)
		for _, epoch := range slices.Sorted(maps.Keys(p.endedLives)) {
			b.num(207, uint64(epoch))
		}
		b.num(p.stream.base, p.stream.expect, uint64(p.stream.sent))
		b.messages(p.stream.queue...)
		for _, r := range p.requests {
			b.num(208, uint64(r.tries))
			b.messages(r.msg)
		}
		for _, x := range p.lost {
			b.num(212)
			b.messages(x.msg)
		}
	}
	for _, g := range m.formerLives {
		b.num(209, uint64(g.life.worker), uint64(g.life.epoch))
	}
	b.num(205)
	young, old := m.tombs.Tables()
	b.tombs(young)
	b.num(206)
	b.tombs(old)
	for _, fork := range sortedKeys(m.offered) {
		b.ids(fork, m.offered[fork])
	}
	for _, id := range sortedKeys(m.early) {
		b.num(211)
		b.ids(id)
		for _, e := range m.early[id] {
			b.num(uint64(e.from.worker), uint64(e.from.epoch))
			b.messages(e.msg)
		}
	}
}

var hashSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

type encoder []byte

func (e *encoder) num(numbers ...uint64) {
	for _, n := range numbers {
		*e = binary.AppendUvarint(*e, n)
	}
}

func (e *encoder) ids(ids ...ID) {
	for _, id := range ids {
		e.num(uint64(id.On), id.N, uint64(id.Epoch))
	}
}

func (e *encoder) tombs(table map[tomb]struct{}) {
	by := map[ID][]uint64{}
	for t := range table {
		by[t.fork] = append(by[t.fork], uint64(t.by))
	}
	for _, fork := range sortedKeys(by) {
		slices.Sort(by[fork])
		e.ids(fork)
		e.num(by[fork]...)
	}
}

func (e *encoder) lives(table map[ID]life) {
	e.num(202)
	for _, id := range sortedKeys(table) {
		e.ids(id)
		e.num(uint64(table[id].worker), uint64(table[id].epoch))
	}
}

func (e *encoder) messages(all ...Message) {
	for _, m := range all {
		e.num(210, uint64(m.Kind), uint64(m.Code), uint64(m.Owner), uint64(m.OwnerEpoch))
		e.ids(m.ID, m.Fork, m.Root)
		*e = append(*e, m.Key[:]...)
	}
}

func (e *encoder) flags(flags ...bool) {
	for _, f := range flags {
		c := byte('-')
		if f {
			c = '+'
		}
		*e = append(*e, c)
	}
}
