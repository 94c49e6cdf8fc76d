// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// sendEarly sends that many messages of a few bytes on slot 1 that are not received, each with its number.
func sendEarly(m *Mesh, to, n int) []*transport.Op {
	ops := make([]*transport.Op, n)
	for i := range ops {
		ops[i] = &transport.Op{Peer: to, Slot: 1, Buf: binary.LittleEndian.AppendUint32(nil, uint32(i))}
		m.Send(ops[i])
	}
	return ops
}

// takeEarly receives them, and checks that they come in order.
func takeEarly(t *testing.T, m *Mesh, from int, ops []*transport.Op) {
	t.Helper()
	ctx := messageContext(t)
	for i := range ops {
		op := &transport.Op{Peer: from, Slot: 1, Buf: make([]byte, 4)}
		m.Recv(op)
		if err := m.Wait(ctx, op); err != nil || op.N != 4 || binary.LittleEndian.Uint32(op.Buf) != uint32(i) {
			t.Fatalf("message %d of %d: %d bytes, % x, %v", i, len(ops), op.N, op.Buf, err)
		}
	}
}

// TestEarlyMessagesHoldUpNoOtherSlot: however many messages on one slot have no receive, one on another slot arrives.
func TestEarlyMessagesHoldUpNoOtherSlot(t *testing.T) {
	t.Parallel()
	for _, early := range []int{shmring.WindowMessages, shmring.WindowMessages + 1, shmring.WindowMessages + 300} {
		engines := world(t, 2, func(c *Config) { c.Arena = pageSize })
		ctx := messageContext(t)
		a, b := engines[0].mesh, engines[1].mesh
		sends := sendEarly(a, 1, early)
		for _, size := range []int{1, 100 << 10} {
			out := &transport.Op{Peer: 1, Slot: 2, Buf: bytes.Repeat([]byte{9}, size)}
			in := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, size)}
			a.Send(out)
			b.Recv(in)
			if err := b.Wait(ctx, in); err != nil || !bytes.Equal(in.Buf, out.Buf) {
				t.Fatalf("behind %d early messages: %v", early, err)
			}
			if err := a.Wait(ctx, out); err != nil {
				t.Fatal(err)
			}
		}
		if held := heldBy(b.mu.peers[0], b); held > shmring.WindowSize {
			t.Errorf("%d bytes are held", held)
		}
		takeEarly(t, b, 0, sends)
		for i, op := range sends {
			if err := a.Wait(ctx, op); err != nil {
				t.Fatalf("send %d: %v", i, err)
			}
		}
		// Receives have given the window back: small messages go at once again.
		for _, op := range sendEarly(a, 1, shmring.WindowMessages/2) {
			if !op.Completed() {
				t.Fatal("a small message was not sent at once")
			}
			takeEarlyOne(t, b)
		}
	}
}

// takeEarlyOne receives a message whatever its number.
func takeEarlyOne(t *testing.T, m *Mesh) {
	t.Helper()
	op := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 4)}
	m.Recv(op)
	if err := m.Wait(messageContext(t), op); err != nil {
		t.Fatal(err)
	}
}

// TestEarlyMessagesHoldUpNoGrant: a rank that has sent many early messages can receive a large one from the rank that does not take
// them.
func TestEarlyMessagesHoldUpNoGrant(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	b.Recv(&transport.Op{Peer: 0, Slot: 9, Buf: make([]byte, 1)}) // so that b reads its ring
	sendEarly(a, 1, 3*shmring.WindowMessages)
	in := &transport.Op{Peer: 1, Slot: 2, Buf: make([]byte, 1<<20)}
	out := &transport.Op{Peer: 0, Slot: 2, Buf: bytes.Repeat([]byte{9}, 1<<20)}
	a.Recv(in)
	b.Send(out)
	if err := b.Wait(ctx, out); err != nil {
		t.Fatal(err)
	}
	if err := a.Wait(ctx, in); err != nil || !bytes.Equal(in.Buf, out.Buf) {
		t.Fatal(err)
	}
}

// TestOffersAreBounded: of more messages than may be offered, the rest waits with its sender, and all of them arrive.
func TestOffersAreBounded(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	a.offers = 50
	b.Recv(&transport.Op{Peer: 0, Slot: 9, Buf: make([]byte, 1)}) // so that b reads its ring
	sends := sendEarly(a, 1, shmring.WindowMessages+a.offers+200)
	offers := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.mu.peers[1].offered.Len
	}
	for offers() < a.offers && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	done := make(chan error, 1)
	go func() { done <- a.Wait(ctx, sends[len(sends)-1]) }()
	if n := offers(); n != a.offers {
		t.Errorf("%d offers", n)
	}
	takeEarly(t, b, 0, sends)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// restKeeper returns when a keeper that has nothing to do has found that out, probably.
func restKeeper() { time.Sleep(5 * keepSeldom) }

// TestEarlyOfferWithoutAWaiter: a receive gets the message whose offer came before it, also if no goroutine waits for that receive.
func TestEarlyOfferWithoutAWaiter(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]int{"of a rank": 0, "of any rank": transport.AnyPeer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := world(t, 2, nil)
			ctx := messageContext(t)
			a, b := engines[0].mesh, engines[1].mesh
			out := &transport.Op{Peer: 1, Slot: 1, Buf: bytes.Repeat([]byte{9}, 1<<20)}
			a.Send(out)
			last, first := &transport.Op{Peer: 1, Slot: 2, Buf: []byte{1}}, &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)}
			a.Send(last)
			b.Recv(first) // behind the offer
			if err := b.Wait(ctx, first); err != nil {
				t.Fatal(err)
			}
			restKeeper()
			in := &transport.Op{Peer: from, Slot: 1, Buf: make([]byte, len(out.Buf))}
			b.Recv(in)
			if err := a.Wait(ctx, out); err != nil {
				t.Fatal(err)
			}
			testkit.Until(t, "the message is there", in.Completed)
			if !bytes.Equal(in.Buf, out.Buf) {
				t.Error("another message")
			}
		})
	}
}

// TestRefusalBehindAFullRing: a sender learns that its message is too long for the receive, also if the receiver's ring to it was full and
// no goroutine waits there any more.
func TestRefusalBehindAFullRing(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	<-a.role // the ring is not read
	for _, size := range []int{b.eager, 0} {
		for {
			op := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, size)}
			if b.Send(op); b.Cancel(op) {
				break // no room
			}
		}
	}
	out, in := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1<<20)}, &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 1)}
	a.Send(out)
	b.Recv(in)
	if err := b.Wait(ctx, in); !errors.Is(err, cohort.Mismatch) {
		t.Fatal(err)
	}
	restKeeper()
	a.role <- struct{}{}
	if err := a.Wait(ctx, out); !errors.Is(err, cohort.Mismatch) {
		t.Fatal(err)
	}
}
