// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
	"github.com/cohort-dist/cohort/tensor"
)

// scripted is rank 1 of a group of two, of which a test writes and reads every frame.
type scripted struct {
	t *testing.T
	*net.TCPConn
}

// withScripted makes rank 0 of such a group.
func withScripted(t *testing.T) (*Mesh, *scripted) {
	t.Helper()
	m, c := withAttacker(t)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := readHello(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // before the mesh, which would wait for that
	return m, &scripted{t, c}
}

// says writes a frame.
func (s *scripted) says(h wire.Header, payload []byte) {
	s.t.Helper()
	h.Length = uint32(len(payload))
	frame := make([]byte, wire.HeaderSize, wire.HeaderSize+len(payload))
	h.Put(frame)
	if _, err := s.Write(append(frame, payload...)); err != nil {
		s.t.Fatal(err)
	}
}

// hears reads a frame that is more than a sign of life.
func (s *scripted) hears() (h wire.Header, payload []byte) {
	s.t.Helper()
	for h.Type == 0 || h.Type == wire.Beat {
		var head [wire.HeaderSize]byte
		_, err := io.ReadFull(s, head[:])
		if err == nil {
			h, err = wire.Parse(head[:])
		}
		payload = make([]byte, h.Length)
		if err == nil {
			_, err = io.ReadFull(s, payload)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return h, payload
}

// post posts a send to the scripted rank.
func post(m *Mesh, slot uint64, buf []byte) *link.Op {
	op := &link.Op{Peer: 1, Slot: slot, Buf: buf}
	m.Send(op)
	return op
}

// TestDeathAfterReady: a rank dies right after it has said that it has room. That is its death, and not a frame that it has sent twice.
func TestDeathAfterReady(t *testing.T) {
	m, s := withScripted(t)
	op := post(m, 5, make([]byte, 8<<20))
	if h, _ := s.hears(); h.Type != wire.Request {
		t.Fatalf("%v instead of a request", h)
	}
	m.mu.Lock() // both are there when it looks
	s.says(wire.Header{Type: wire.Ready, Slot: 5, Total: 8 << 20}, nil)
	_ = s.Close()
	time.Sleep(10 * time.Millisecond)
	m.mu.Unlock()
	if err := wait(t, m, op); dist.CodeOf(err) != dist.PeerLost {
		t.Errorf("the send: %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.err != nil {
		t.Errorf("the group fails: %v", m.mu.err)
	}
}

// TestReasonSurvivesThePayloadOfAnotherCall: the first message of a rank that called something else fails the group. Its payload is
// skipped and not taken for frames, which would end the connection before the reason is told.
func TestReasonSurvivesThePayloadOfAnotherCall(t *testing.T) {
	m, s := withScripted(t)
	slot := wire.CollectiveSlot(7)
	m.Begin(slot, wire.Call{Kind: coll.AllReduce, DType: tensor.Uint8, Bytes: 300})
	op := receive(m, slot, 300)
	theirs := wire.Header{Type: wire.Eager, Flags: wire.Called, Slot: slot, Call: wire.Call{Kind: coll.Broadcast, DType: tensor.Uint8, Bytes: 300}}
	s.says(theirs, make([]byte, 300))
	if err := wait(t, m, op); dist.CodeOf(err) != dist.Mismatch {
		t.Errorf("the receive: %v", err)
	}
	m.mu.Lock()
	m.mu.conns[1].read()
	gone := m.mu.conns[1].gone
	m.mu.Unlock()
	if gone != nil {
		t.Errorf("the connection has ended: %v", gone)
	}
	if h, _ := s.hears(); h.Type != wire.Abort || h.Total != uint64(dist.Mismatch) {
		t.Errorf("%v instead of the reason", h)
	}
}
