// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
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
	if h, _ := s.hears(); h.Type != nativewire.Notice || h.Slot != slot {
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
