// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// stuck begins a collective that does not go on, and waits for it.
func stuck(ctx context.Context, m *Mesh, peer int) (slot uint64, ended chan error) {
	slot, ended = nativewire.CollectiveSlot(7), make(chan error, 1)
	m.Begin(slot, nativewire.Call{Kind: collective.Barrier})
	op := &transport.Op{Peer: peer, Slot: slot}
	m.Recv(op)
	go func() { ended <- m.Wait(ctx, op) }()
	return slot, ended
}

// TestNoticeAmongOtherEvents: that there is always something to hear does not keep a rank from saying what it waits for.
func TestNoticeAmongOtherEvents(t *testing.T) {
	m, s := withScripted(t)
	noise, err := unix.Eventfd(1, unix.EFD_CLOEXEC) // it is never read: each poll of the sockets finds an event
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(noise) }()
	if err = unix.EpollCtl(m.ep, unix.EPOLL_CTL_ADD, noise, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	slot, ended := stuck(ctx, m, 1)
	if h, _ := s.receives(); h.Type != nativewire.Notice || h.Slot != slot {
		t.Errorf("%v instead of a notice", h.String())
	}
	cancel()
	<-ended
}

// TestNoticeAmongMessages: nor do messages that another goroutine waits for, and for which it drives.
func TestNoticeAmongMessages(t *testing.T) {
	meshes := connect(t, 2, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, ended := stuck(ctx, meshes[1], 0)
	var rallies sync.WaitGroup
	for rank, m := range meshes {
		rallies.Go(func() {
			out, in := &transport.Op{Peer: 1 - rank, Slot: 3, Buf: make([]byte, 8)},
				&transport.Op{Peer: 1 - rank, Slot: 3, Buf: make([]byte, 8)}
			for ctx.Err() == nil {
				m.Send(out)
				m.Recv(in)
				if err := errors.Join(m.Wait(ctx, out), m.Wait(ctx, in)); err != nil {
					return
				}
			}
		})
	}
	testkit.Until(t, "the other rank hears of it", func() bool {
		meshes[0].mu.Lock()
		defer meshes[0].mu.Unlock()
		return len(meshes[0].mu.conns[1].notices) == 1
	})
	cancel()
	<-ended
	rallies.Wait()
}

// TestAllOfAHostLearnWhereARankRuns: a rank exchanges messages with a few others only, and all of them decide by where all are.
func TestAllOfAHostLearnWhereARankRuns(t *testing.T) {
	meshes := connectWith(t, 3, nil, func(c *Config) {
		c.Shared, c.Local, c.Heartbeat = false, []bool{true, true, true}, -1
	})
	m := meshes[0]
	m.place(spinwait.Now())
	m.mu.Lock()
	core := m.mu.cores[0]
	m.mu.Unlock()
	if core == 0 {
		t.Fatal("the rank does not know where it runs itself")
	}
	for _, other := range meshes[1:] {
		if got := knownPlace(t, other, 0); got != core {
			t.Errorf("rank %d takes rank 0 to be at %d, it is at %d", other.rank, got, core)
		}
	}
}

// knownPlace returns where a rank is, as a mesh has heard.
func knownPlace(t *testing.T, m *Mesh, rank int) uint16 {
	t.Helper()
	m.mu.Lock() // the keeper has seen what came before, and nothing that comes later
	defer m.mu.Unlock()
	for begun := time.Now(); m.mu.cores[rank] == 0; {
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("rank %d has not heard where rank %d runs", m.rank, rank)
		}
		if n, errno := epollSleep(m.ep, m.events[:], !m.cfg.Shared); errno == 0 {
			m.handle(n)
		}
	}
	return m.mu.cores[rank]
}

// TestMovesOfARankThatIsNotHeard: a rank that moves again and again while another one of its host is stopped keeps no frame for each move.
// When the other one goes on it learns where the rank is.
func TestMovesOfARankThatIsNotHeard(t *testing.T) {
	m, s := withScripted(t)
	m.mu.Lock()
	m.cfg.Local = []bool{true, true}
	_ = unix.SetsockoptInt(m.mu.conns[1].fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10)
	m.mu.Unlock()
	_ = s.SetReadBuffer(16 << 10)
	post(m, 1, make([]byte, nativewire.MaxPiece)) // in one frame, which says where the rank was before
	s.receives()
	s.says(nativewire.Header{Type: nativewire.Ready, Slot: 1, Total: nativewire.MaxPiece}, nil)
	testkit.Until(t, "the socket is full", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.mu.conns[1].out.armed
	})
	const last = 1000
	m.mu.Lock()
	for core := range uint16(last) {
		m.moved(core + 1)
	}
	kept := len(m.mu.conns[1].out.control)
	m.mu.Unlock()
	if kept > nativewire.HeaderSize {
		t.Errorf("%d bytes wait for the socket", kept)
	}
	var frame [nativewire.HeaderSize]byte
	for {
		if _, err := io.ReadFull(s, frame[:]); err != nil {
			t.Fatal(err)
		}
		h, err := nativewire.Parse(frame[:])
		if err != nil {
			t.Fatal(err)
		}
		if h.Core == last {
			return
		}
		_, _ = io.CopyN(io.Discard, s, int64(h.Length))
	}
}
