// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
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
	if _, err := readHello(c); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { _ = c.Close() }) // before the mesh, which would wait for that
	return m, &scripted{t, c}
}

// says writes a frame.
func (s *scripted) says(h nativewire.Header, payload []byte) {
	s.t.Helper()
	h.Length = uint32(len(payload))
	frame := make([]byte, nativewire.HeaderSize, nativewire.HeaderSize+len(payload))
	h.Put(frame)
	if _, err := s.Write(append(frame, payload...)); err != nil {
		s.t.Fatal(err)
	}
}

// receives reads a frame that is more than a sign of life.
func (s *scripted) receives() (h nativewire.Header, payload []byte) {
	s.t.Helper()
	for h.Type == 0 || h.Type == nativewire.Beat {
		var head [nativewire.HeaderSize]byte
		_, err := io.ReadFull(s, head[:])
		if err == nil {
			h, err = nativewire.Parse(head[:])
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
func post(m *Mesh, slot uint64, buf []byte) *transport.Op {
	op := &transport.Op{Peer: 1, Slot: slot, Buf: buf}
	m.Send(op)
	return op
}

// TestDeathAfterReady: a rank dies right after it has said that it has room. That is its death, and not a frame that it has sent twice.
func TestDeathAfterReady(t *testing.T) {
	m, s := withScripted(t)
	op := post(m, 5, make([]byte, 8<<20))
	if h, _ := s.receives(); h.Type != nativewire.Request {
		t.Fatalf("%v instead of a request", h)
	}
	m.mu.Lock() // both are there when it looks
	s.says(nativewire.Header{Type: nativewire.Ready, Slot: 5, Total: 8 << 20}, nil)
	_ = s.Close()
	time.Sleep(10 * time.Millisecond)
	m.mu.Unlock()
	if err := wait(t, m, op); cohort.CodeOf(err) != cohort.PeerLost {
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
	slot := nativewire.CollectiveSlot(7)
	m.Begin(slot, nativewire.Call{Kind: collective.AllReduce, DType: tensor.Uint8, Bytes: 300})
	op := receive(m, slot, 300)
	theirs := nativewire.Header{
		Type: nativewire.Eager, Flags: nativewire.Called, Slot: slot,
		Call: nativewire.Call{Kind: collective.Broadcast, DType: tensor.Uint8, Bytes: 300},
	}
	s.says(theirs, make([]byte, 300))
	if err := wait(t, m, op); cohort.CodeOf(err) != cohort.Mismatch {
		t.Errorf("the receive: %v", err)
	}
	m.mu.Lock()
	m.mu.conns[1].read()
	gone := m.mu.conns[1].gone
	m.mu.Unlock()
	if gone != nil {
		t.Errorf("the connection has ended: %v", gone)
	}
	if h, _ := s.receives(); h.Type != nativewire.Abort || h.Total != uint64(cohort.Mismatch) {
		t.Errorf("%v instead of the reason", h)
	}
}

// busy has the mesh write a message for which the socket has no room now. It returns the slot of it.
func busy(t *testing.T, m *Mesh, s *scripted) (slot uint64) {
	t.Helper()
	const size = 64 << 20
	post(m, 1, make([]byte, size))
	s.receives()
	s.says(nativewire.Header{Type: nativewire.Ready, Slot: 1, Total: size}, nil)
	testkit.Until(t, "the socket is full", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.mu.conns[1].out.armed
	})
	return 1
}

// hearsBut returns the next frame that is not on a slot.
func (s *scripted) hearsBut(slot uint64) (nativewire.Header, []byte) {
	s.t.Helper()
	for {
		if h, payload := s.receives(); h.Slot != slot {
			return h, payload
		}
	}
}

// TestRequestsKeepTheirPlace: what the peer learns of messages of one slot is in the order in which they were posted, if some go without
// asking and some ask, and the socket was full.
func TestRequestsKeepTheirPlace(t *testing.T) {
	m, s := withScripted(t)
	stream := busy(t, m, s)
	sizes := []int{100, 100_000, 200, eagerMax + 1, 300}
	for _, n := range sizes {
		post(m, 7, make([]byte, n))
	}
	for i, n := range sizes {
		h, payload := s.hearsBut(stream)
		got := len(payload)
		if h.Type == nativewire.Request {
			got = int(h.Total)
		}
		if h.Slot != 7 || got != n {
			t.Fatalf("message %d: %v, want %d bytes", i, h.String(), n)
		}
	}
}

// TestRequestsKeepTheirPlaceInCollectives: the same, of messages of a collective that ask because the peer holds no more.
func TestRequestsKeepTheirPlaceInCollectives(t *testing.T) {
	m, s := withScripted(t)
	stream := busy(t, m, s)
	slot := nativewire.CollectiveSlot(7)
	m.Begin(slot, nativewire.Call{Kind: collective.AllReduce, DType: tensor.Uint8, Bytes: eagerMax})
	const count = defaultWindow/eagerMax + 5
	for i := range count {
		post(m, slot, make([]byte, eagerMax-i))
	}
	requests := 0
	for i := range count {
		h, payload := s.hearsBut(stream)
		got := len(payload)
		if h.Type == nativewire.Request {
			got = int(h.Total)
			requests++
		}
		if h.Slot != slot || got != eagerMax-i {
			t.Fatalf("message %d: %v", i, h.String())
		}
	}
	if requests == 0 {
		t.Error("none has asked")
	}
}

// TestSmallMessagesPassALargeOne: a small message waits for a frame of a large one, not for all of it. Nor does the large one wait for a
// flood of small ones.
func TestSmallMessagesPassALargeOne(t *testing.T) {
	m, s := withScripted(t)
	stream := busy(t, m, s)
	op := post(m, 7, []byte{1})
	for frames := 0; ; frames++ {
		h, _ := s.receives()
		if h.Slot == 7 {
			break
		}
		if h.Flags&nativewire.More == 0 {
			t.Fatalf("the small message comes after %d frames, with which the large one ends", frames)
		}
	}
	if err := wait(t, m, op); err != nil {
		t.Error(err)
	}
	m.mu.Lock()
	m.mu.conns[1].window.credit = 8 * nativewire.MaxPiece
	m.mu.Unlock()
	for range 5 * nativewire.MaxPiece / eagerMax {
		post(m, 7, make([]byte, eagerMax))
	}
	for row := 0; ; row += eagerMax {
		h, _ := s.receives()
		if h.Slot == stream {
			if row = 0; h.Flags&nativewire.More == 0 {
				break
			}
		}
		if row > nativewire.MaxPiece {
			t.Fatalf("%d bytes of small messages in a row", row)
		}
	}
}

// TestGrantedSendCannotBeWithdrawn: the peer has said that it has room for it, and waits.
func TestGrantedSendCannotBeWithdrawn(t *testing.T) {
	m, s := withScripted(t)
	other := post(m, 6, make([]byte, 100_000))
	s.receives()
	stream := busy(t, m, s)
	s.says(nativewire.Header{Type: nativewire.Ready, Slot: 6, Total: 100_000}, nil)
	testkit.Until(t, "it waits for the socket", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.mu.conns[1].out.granted.Len == 2
	})
	if m.Cancel(other) {
		t.Error("a message that the peer has room for is withdrawn")
	}
	paid := 0
	for _, n := range []int{100, 100_000} {
		testkit.Until(t, "a message that the peer has not heard of is withdrawn", func() bool {
			op := post(m, 7, make([]byte, n))
			withdrawn := m.Cancel(op)
			if !withdrawn && n <= eagerMax { // the socket has taken more meanwhile
				paid += cost(op)
			}
			return withdrawn
		})
	}
	m.mu.Lock()
	credit := m.mu.conns[1].window.credit
	m.mu.Unlock()
	if credit != defaultWindow-paid {
		t.Errorf("a credit of %d, want %d", credit, defaultWindow-paid)
	}
	for {
		if h, _ := s.hearsBut(stream); h.Slot == 6 {
			if h.Type != nativewire.Data || h.Length != 100_000 {
				t.Errorf("%v instead of the message", h.String())
			}
			return
		}
	}
}

// TestUnsentMessagesOfCollectivesCostNothing: when a rank is lost the messages of collectives that wait for the socket
// end. Messages between the ranks that are left go on, so the credit that those have paid, and what their frames gave
// back to the peer, is not lost.
func TestUnsentMessagesOfCollectivesCostNothing(t *testing.T) {
	m, s := withScripted(t)
	s.says(nativewire.Header{Type: nativewire.Eager, Slot: 3}, make([]byte, 100))
	if err := wait(t, m, receive(m, 3, 100)); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.mu.conns[1]
	before := c.window
	if before.owed == 0 {
		t.Fatal("nothing is owed to the peer")
	}
	var ops []*transport.Op
	for range 3 {
		op := &transport.Op{Peer: 1, Slot: nativewire.CollectiveSlot(7), Buf: make([]byte, 100)}
		op.Begin()
		c.post(op)
		ops = append(ops, op)
	}
	c.openNext() // the socket does not take the first one
	m.lose(cohort.New("test", cohort.PeerLost, "a rank is lost"))
	for _, op := range ops {
		if !op.Completed() {
			t.Error("a message of a collective goes on")
		}
	}
	if c.window != before {
		t.Errorf("%+v, before %+v", c.window, before)
	}
}
