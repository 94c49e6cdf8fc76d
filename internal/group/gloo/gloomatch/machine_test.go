// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloomatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// packet is a frame on its way, with its payload.
type packet struct {
	frame   gloowire.Frame
	payload []byte
}

// simulation connects machines by queues; the test decides which queue moves next.
type simulation struct {
	machines []*Machine
	links    map[[2]int][]packet // by sender and receiver
	arrived  map[string][][]byte // payloads by "from>to slot", in order
	dropped  int
	fatal    func(format string, args ...any)
}

func newSimulation(size int, fatal func(format string, args ...any)) *simulation {
	s := &simulation{links: map[[2]int][]packet{}, arrived: map[string][][]byte{}, fatal: fatal}
	for r := range size {
		s.machines = append(s.machines, New(r, size))
	}
	return s
}

func lane(from, to int, slot uint64) string { return fmt.Sprintf("%d>%d %d", from, to, slot) }

// settle carries out the effects of one machine.
func (s *simulation) settle(rank int) {
	m := s.machines[rank]
	peers := map[int]bool{}
	for _, e := range m.Effects {
		if !e.Emit() {
			e.Op.Complete(e.Err)
			continue
		}
		peers[e.Peer] = true
		p := packet{frame: e.Frame}
		if e.Op != nil {
			p.payload = slices.Clone(e.Op.Buf)
			e.Op.Complete(nil)
		}
		key := [2]int{rank, e.Peer}
		s.links[key] = append(s.links[key], p)
	}
	if len(peers) > 1 {
		s.fatal("one event sent frames to %d peers", len(peers)) // the driver counts on one
	}
	m.Effects = m.Effects[:0]
}

func (s *simulation) send(rank int, op *transport.Op) {
	op.Begin()
	s.machines[rank].Send(op)
	s.settle(rank)
}

func (s *simulation) recv(rank int, op *transport.Op) {
	op.Begin()
	s.machines[rank].Recv(op)
	s.settle(rank)
}

// move delivers the oldest packet of one queue.
func (s *simulation) move(key [2]int) {
	p := s.links[key][0]
	s.links[key] = s.links[key][1:]
	if len(s.links[key]) == 0 {
		delete(s.links, key)
	}
	from, to := key[0], key[1]
	op, err := s.machines[to].Frame(from, p.frame)
	if err != nil {
		s.fatal("rank %d refused %+v of rank %d: %v", to, p.frame, from, err)
		return
	}
	s.settle(to)
	if p.frame.Opcode != gloowire.Data {
		return
	}
	if op == nil {
		s.dropped++
		return
	}
	if len(p.payload) > len(op.Buf) {
		s.fatal("overflow: %d bytes into %d", len(p.payload), len(op.Buf))
		return
	}
	if op.N != len(p.payload) || op.Source != from || op.Completed() {
		s.fatal("op %+v for a payload of %d bytes from %d", op, len(p.payload), from)
	}
	copy(op.Buf, p.payload)
	op.Complete(nil)
	s.arrived[lane(from, to, p.frame.Slot)] = append(s.arrived[lane(from, to, p.frame.Slot)], p.payload)
}

func (s *simulation) queues() [][2]int {
	var keys [][2]int
	for k := range s.links {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	return keys
}

func message(id int, length int) []byte {
	b := make([]byte, max(length, 4))
	binary.LittleEndian.PutUint32(b, uint32(id))
	return b
}

// TestMatchingIsSound posts sends and receives that fit each other in a random order on random ranks, moves frames in a
// random order, and checks that everything ends, in order, with the right bytes.
func TestMatchingIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 4).Draw(t, "size")
		s := newSimulation(size, t.Fatalf)
		type post struct {
			rank int
			recv bool
			op   *transport.Op
		}
		var posts []post
		sent := map[string][][]byte{}
		anySlots := map[[2]int]bool{} // receiver and slot: served by receives from any rank
		for id := range rapid.IntRange(1, 25).Draw(t, "messages") {
			from := rapid.IntRange(0, size-1).Draw(t, "from")
			to := (from + rapid.IntRange(1, size-1).Draw(t, "distance")) % size
			slot := rapid.IntRange(0, 2).Draw(t, "slot")
			if _, ok := anySlots[[2]int{to, slot}]; !ok {
				anySlots[[2]int{to, slot}] = rapid.Bool().Draw(t, "any")
			}
			data := message(id, rapid.IntRange(0, 40).Draw(t, "length"))
			sent[lane(from, to, uint64(slot))] = append(sent[lane(from, to, uint64(slot))], data)
			posts = append(posts, post{from, false, &transport.Op{Peer: to, Slot: uint64(slot), Buf: data}})
			recv := &transport.Op{Peer: from, Slot: uint64(slot), Buf: make([]byte, 40)}
			if anySlots[[2]int{to, slot}] {
				recv.Peer = transport.AnyPeer
				if rapid.Bool().Draw(t, "listed") {
					for r := range size {
						if r != to {
							recv.From = append(recv.From, r)
						}
					}
				}
			}
			posts = append(posts, post{to, true, recv})
		}
		// Ranks post in their own order, interleaved at random; sends of one lane stay in order.
		var ops []*transport.Op
		order := rapid.Permutation(posts).Draw(t, "order")
		lanes := map[string][]*transport.Op{}
		for _, p := range posts {
			if !p.recv {
				key := lane(p.rank, p.op.Peer, p.op.Slot)
				lanes[key] = append(lanes[key], p.op)
			}
		}
		for len(order) > 0 || len(s.links) > 0 {
			if keys := s.queues(); len(keys) > 0 && (len(order) == 0 || rapid.Bool().Draw(t, "move")) {
				s.move(rapid.SampledFrom(keys).Draw(t, "queue"))
				continue
			}
			p := order[0]
			order = order[1:]
			if p.recv {
				s.recv(p.rank, p.op)
				ops = append(ops, p.op)
				continue
			}
			key := lane(p.rank, p.op.Peer, p.op.Slot)
			op := lanes[key][0]
			lanes[key] = lanes[key][1:]
			s.send(p.rank, op)
			ops = append(ops, op)
		}
		for _, op := range ops {
			if !op.Completed() || op.State.Err != nil {
				t.Fatalf("an op is not complete, although every message has its receive: %+v", op)
			}
		}
		for key, want := range sent {
			if !slices.EqualFunc(want, s.arrived[key], slices.Equal) {
				t.Fatalf("%s: sent %v, arrived %v", key, want, s.arrived[key])
			}
		}
		for r, m := range s.machines {
			if !m.Idle() {
				t.Fatalf("rank %d still holds state: %+v %+v", r, m.pairs, m.slots)
			}
			for peer, n := range m.notices {
				if n != 0 {
					t.Fatalf("rank %d counts %d open notices of rank %d", r, n, peer)
				}
			}
		}
	})
}

// TestWithdrawnOps cancels at random and loses peers at random: every op ends, nothing overflows, the protocol is never
// violated, and what arrives is in order.
func TestWithdrawnOps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 4).Draw(t, "size")
		s := newSimulation(size, t.Fatalf)
		type posted struct {
			rank int
			op   *transport.Op
		}
		var all []posted
		sentLanes := map[string][]uint32{}
		gone := map[int]bool{}
		for id := range rapid.IntRange(1, 60).Draw(t, "events") {
			rank := rapid.IntRange(0, size-1).Draw(t, "rank")
			peer := (rank + rapid.IntRange(1, size-1).Draw(t, "distance")) % size
			slot := uint64(rapid.IntRange(0, 1).Draw(t, "slot"))
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0, 1:
				op := &transport.Op{Peer: peer, Slot: slot, Buf: message(id, rapid.IntRange(4, 12).Draw(t, "length"))}
				s.send(rank, op)
				all = append(all, posted{rank, op})
				sentLanes[lane(rank, peer, slot)] = append(sentLanes[lane(rank, peer, slot)], uint32(id))
			case 2, 3:
				// Rooms are sometimes too small: then the sender must refuse.
				op := &transport.Op{Peer: peer, Slot: slot, Buf: make([]byte, rapid.SampledFrom([]int{12, 12, 12, 6}).Draw(t, "room"))}
				if rapid.IntRange(0, 3).Draw(t, "any") == 0 {
					op.Peer = transport.AnyPeer
				}
				s.recv(rank, op)
				all = append(all, posted{rank, op})
			case 4:
				if len(all) > 0 {
					p := rapid.SampledFrom(all).Draw(t, "op")
					before := p.op.Completed()
					ok := s.machines[p.rank].Cancel(p.op)
					s.settle(p.rank)
					if ok && (before || !errors.Is(p.op.State.Err, cohort.Aborted)) {
						t.Fatalf("cancelled a complete op, or without its error: %+v", p.op)
					}
				}
			case 5:
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 && len(gone) == 0 {
					gone[rank] = true
					for r, m := range s.machines {
						if r != rank {
							m.Lost(rank, cohort.PeerLost)
							s.settle(r)
						}
						delete(s.links, [2]int{r, rank})
						delete(s.links, [2]int{rank, r})
					}
					s.machines[rank].Fail(cohort.Closed)
					s.settle(rank)
				}
			default:
				if keys := s.queues(); len(keys) > 0 {
					s.moveUnless(rapid.SampledFrom(keys).Draw(t, "queue"), gone)
				}
			}
		}
		for len(s.links) > 0 {
			s.moveUnless(rapid.SampledFrom(s.queues()).Draw(t, "last"), gone)
		}
		for r, m := range s.machines {
			m.Fail(cohort.Closed)
			s.settle(r)
		}
		for _, p := range all {
			if !p.op.Completed() {
				t.Fatalf("rank %d: an op never ended: %+v", p.rank, p.op)
			}
		}
		for key, arrived := range s.arrived {
			order := sentLanes[key]
			for _, data := range arrived {
				at := slices.Index(order, binary.LittleEndian.Uint32(data))
				if at < 0 {
					t.Fatalf("%s: message %d twice, out of order or never sent", key, binary.LittleEndian.Uint32(data))
				}
				order = order[at+1:]
			}
		}
	})
}

// moveUnless moves a packet; those of a dead rank are dropped. A receive that was withdrawn and replaced by a smaller one
// may meet a message that was made for the larger room; that is the one way to an error.
func (s *simulation) moveUnless(key [2]int, gone map[int]bool) {
	if gone[key[0]] || gone[key[1]] {
		delete(s.links, key)
		return
	}
	fatal := s.fatal
	s.fatal = func(format string, args ...any) {
		for _, a := range args {
			if err, ok := a.(error); ok && errors.Is(err, cohort.Protocol) {
				gone[key[0]], gone[key[1]] = true, true
				for r, m := range s.machines {
					m.Fail(err)
					s.settle(r)
				}
				return
			}
		}
		fatal(format, args...)
	}
	s.move(key)
	s.fatal = fatal
}

func TestRoomIsRespected(t *testing.T) {
	s := newSimulation(2, t.Fatalf)
	recv := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 8)}
	s.recv(1, recv)
	s.move([2]int{1, 0})
	long := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 9)}
	s.send(0, long)
	if !errors.Is(long.State.Err, cohort.Mismatch) || len(s.links) != 0 {
		t.Fatalf("a message that is too long: %v, frames %v", long.State.Err, s.links)
	}
	var e *cohort.Error
	if !errors.As(long.State.Err, &e) || e.Rank != 1 {
		t.Fatalf("the error must name rank 1: %v", long.State.Err)
	}
	// The receive is still there for a message that fits, whichever side is first.
	fits := &transport.Op{Peer: 1, Slot: 1, Buf: []byte("12345678")}
	s.send(0, fits)
	for len(s.links) > 0 {
		s.move(s.queues()[0])
	}
	if string(recv.Buf) != "12345678" || recv.State.Err != nil {
		t.Fatalf("%q, %v", recv.Buf, recv.State.Err)
	}

	late := &transport.Op{Peer: 1, Slot: 2, Buf: make([]byte, 9)}
	s.send(0, late)
	s.recv(1, &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 8)})
	for len(s.links) > 0 {
		s.move(s.queues()[0])
	}
	if !errors.Is(late.State.Err, cohort.Mismatch) {
		t.Fatalf("refused too late: %v", late.State.Err)
	}
}

func TestProtocolErrors(t *testing.T) {
	data := func(n uint64) gloowire.Frame { return gloowire.Frame{Opcode: gloowire.Data, Slot: 1, Length: n} }
	m := New(0, 2)
	if _, err := m.Frame(1, data(0)); !errors.Is(err, cohort.Protocol) {
		t.Errorf("data without a receive: %v", err)
	}
	op := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 8)}
	op.Begin()
	m.Recv(op)
	if _, err := m.Frame(1, data(8)); !errors.Is(err, cohort.Protocol) {
		t.Errorf("data without an announcement: %v", err)
	}
	if _, err := m.Frame(1, gloowire.Frame{Opcode: gloowire.SendReady, Slot: 1, Length: 9}); err != nil {
		t.Error(err)
	}
	if _, err := m.Frame(1, data(9)); !errors.Is(err, cohort.Protocol) {
		t.Errorf("data that is too long: %v", err)
	}
	m.Effects = m.Effects[:0]
	m.Lost(1, cohort.PeerLost)
	if len(m.Effects) != 1 || m.Effects[0].Op != op || !errors.Is(m.Effects[0].Err, cohort.PeerLost) {
		t.Errorf("the receive must end with the peer: %+v", m.Effects)
	}
}

// TestFramesAfterFailure: a peer that has not received the notice of the failure continues as before, which is not a protocol error.
func TestFramesAfterFailure(t *testing.T) {
	m := New(0, 2)
	op := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 4)}
	op.Begin()
	m.Recv(op)
	m.Fail(errors.New("failed"))
	m.Effects = m.Effects[:0]
	for _, code := range []gloowire.Opcode{gloowire.SendReady, gloowire.Data, gloowire.RecvReady} {
		if got, err := m.Frame(1, gloowire.Frame{Opcode: code, Slot: 1, Length: 4}); got != nil || err != nil {
			t.Errorf("opcode %d: op %v, %v", code, got, err)
		}
	}
	if len(m.Effects) != 0 || !m.Idle() {
		t.Errorf("a failed machine keeps or does something: %v", m.Effects)
	}
}

func TestNoticesAreBounded(t *testing.T) {
	m := New(0, 2)
	var err error
	for i := range maxNotices + 1 {
		op := gloowire.RecvReady
		if i%2 == 0 {
			op = gloowire.SendReady
		}
		if _, err = m.Frame(1, gloowire.Frame{Opcode: op, Slot: uint64(i % 1000)}); err != nil {
			break
		}
	}
	if !errors.Is(err, cohort.Exhausted) {
		t.Fatalf("a peer may announce for ever: %v", err)
	}
}

// FuzzMachine lets a hostile peer send anything while the program posts and cancels.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 8, 3, 1, 8, 4, 1, 8, 5, 1, 8})
	f.Add([]byte{1, 0, 8, 2, 0, 9, 6, 0, 0, 4, 0, 8, 5, 0, 8})
	f.Fuzz(func(t *testing.T, program []byte) {
		m := New(0, 3)
		var ops []*transport.Op
		dead := [3]bool{}
		for len(program) >= 3 {
			event, slot, size := program[0], uint64(program[1]%3), int(program[2]%16)
			program = program[3:]
			peer := 1 + int(event>>7)
			switch event & 0x7f % 7 {
			case 0:
				op := &transport.Op{Peer: peer, Slot: slot, Buf: make([]byte, size)}
				op.Begin()
				m.Send(op)
				ops = append(ops, op)
			case 1, 2:
				op := &transport.Op{Peer: peer, Slot: slot, Buf: make([]byte, size)}
				if event&0x7f%7 == 2 {
					op.Peer = transport.AnyPeer
				}
				op.Begin()
				m.Recv(op)
				ops = append(ops, op)
			case 6:
				if len(ops) > 0 {
					m.Cancel(ops[size%len(ops)])
				}
			default:
				if dead[peer] {
					break
				}
				opcode := gloowire.Opcode(event&0x7f%7 - 2) // Data, SendReady, RecvReady
				op, err := m.Frame(peer, gloowire.Frame{Opcode: opcode, Slot: slot, Length: uint64(size)})
				if err != nil {
					m.Lost(peer, err)
					dead[peer] = true
				}
				if op != nil {
					if op.N > len(op.Buf) || op.Completed() {
						t.Fatalf("overflow or a second delivery: %+v", op)
					}
					op.Complete(nil)
				}
			}
			for _, e := range m.Effects {
				if e.Op != nil {
					if e.Op.Completed() {
						t.Fatalf("completed twice: %+v", e.Op)
					}
					e.Op.Complete(e.Err)
				}
			}
			m.Effects = m.Effects[:0]
		}
		m.Fail(cohort.Closed)
		for _, e := range m.Effects {
			e.Op.Complete(e.Err)
		}
		for _, op := range ops {
			if !op.Completed() {
				t.Fatalf("never ended: %+v", op)
			}
		}
	})
}
