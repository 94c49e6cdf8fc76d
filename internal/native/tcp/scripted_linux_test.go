// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
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
