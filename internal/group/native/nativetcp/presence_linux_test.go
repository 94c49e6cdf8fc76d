// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// nextLoss returns what a mesh says about lost ranks.
func nextLoss(t *testing.T, losses <-chan transport.Loss) transport.Loss {
	t.Helper()
	select {
	case l := <-losses:
		return l
	case <-time.After(5 * time.Second): // five times what is promised
		t.Fatal("the loss was not reported")
	}
	return transport.Loss{}
}

// TestLossIsReportedWhileIdle: a death and a goodbye are told apart, although no operation runs.
func TestLossIsReportedWhileIdle(t *testing.T) {
	losses := make(chan transport.Loss, 16)
	meshes := connectWith(t, 3, nil, func(c *Config) {
		if c.Rank == 0 {
			c.OnLost = func(l transport.Loss) { losses <- l }
		}
	})
	meshes[2].Sever()
	if l := nextLoss(t, losses); l.Rank != 2 || l.How != transport.Died || !errors.Is(l.Err, cohort.PeerLost) {
		t.Errorf("a death: %+v", l)
	}
	_ = meshes[1].Close()
	if l := nextLoss(t, losses); l.Rank != 1 || l.How != transport.Left || !errors.Is(l.Err, cohort.PeerLost) {
		t.Errorf("a goodbye: %+v", l)
	}
}

// TestGoodbyeDoesNotHideADeath: a rank that leaves because of a death is heard before the death is seen, which must be named.
func TestGoodbyeDoesNotHideADeath(t *testing.T) {
	meshes := connect(t, 3, nil)
	m := meshes[0]
	slot := nativewire.CollectiveSlot(1)
	recv := &transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, 1)}
	m.Recv(recv)
	m.mu.Lock() // it sees nothing until both have gone
	meshes[2].Sever()
	_ = meshes[1].Close()
	m.mu.conns[1].read()
	m.mu.Unlock()
	err := wait(t, m, recv)
	if e := new(cohort.Error); !errors.As(err, &e) || e.Rank != 2 {
		t.Errorf("rank 2 died, rank 1 left because of it: %v", err)
	}
}

// TestWindowIsEnforced: a peer that sends more than it was allowed without asking is cut off.
func TestWindowIsEnforced(t *testing.T) {
	m, c := withAttacker(t)
	recv := &transport.Op{Peer: 1, Slot: 99, Buf: make([]byte, 1)}
	m.Recv(recv)
	frame := make([]byte, nativewire.HeaderSize+eagerMax)
	(&nativewire.Header{Type: nativewire.Eager, Slot: 1, Length: eagerMax}).Put(frame)
	_ = c.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for range 64 { // 2 MiB against a window of 256 KiB
		if _, err := c.Write(frame); err != nil {
			break
		}
	}
	if err := wait(t, m, recv); !errors.Is(err, cohort.Protocol) {
		t.Errorf("%v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	held := 0
	for a := m.mu.conns[1].recvs.inbox.Head; a != nil; a = a.Next {
		held += len(a.Data)
	}
	if held > m.cfg.Window {
		t.Errorf("%d bytes are held, %d are allowed", held, m.cfg.Window)
	}
}

// TestCloseTwiceAtOnce: calls of Close from several goroutines all return, after the mesh is closed.
func TestCloseTwiceAtOnce(t *testing.T) {
	for range 20 {
		meshes := connect(t, 2, nil)
		var wg sync.WaitGroup
		for range 4 {
			for _, m := range meshes {
				wg.Go(func() {
					_ = m.Close()
					m.mu.Lock()
					defer m.mu.Unlock()
					if !m.mu.closed {
						t.Error("Close returned before the mesh was closed")
					}
				})
			}
		}
		wg.Wait()
	}
}

// TestGoodbyeSaysWhy: a rank that leaves because of a death is not named for it, by those that have seen nothing of the death. It may not
// blame itself, the rank that it tells, or a rank that does not exist.
func TestGoodbyeSaysWhy(t *testing.T) {
	lost := uint64(cohort.PeerLost)
	for name, c := range map[string]struct {
		slot, total uint64
		rank        cohort.Rank
		code        cohort.Code
	}{
		"no reason":       {0, 0, 1, cohort.PeerLost},
		"a death":         {3, lost, 2, cohort.PeerLost},
		"another failure": {3, uint64(cohort.Mismatch), 2, cohort.Mismatch},
		"none":            {0, lost, 1, cohort.PeerLost},
		"itself":          {2, lost, 1, cohort.PeerLost},
		"who is told":     {1, lost, 1, cohort.PeerLost},
		"a rank too high": {4, lost, 1, cohort.PeerLost},
		"no rank at all":  {1<<64 - 1, lost, 1, cohort.PeerLost},
		"an unknown code": {3, 256 + lost, 1, cohort.PeerLost},
	} {
		t.Run(name, func(t *testing.T) {
			meshes := connect(t, 3, nil)
			recv := &transport.Op{Peer: 1, Slot: 5, Buf: make([]byte, 1)}
			meshes[0].Recv(recv)
			sayBye(meshes[1], 0, nativewire.Header{Type: nativewire.Bye, Slot: c.slot, Total: c.total})
			if e, _ := errors.AsType[*cohort.Error](wait(t, meshes[0], recv)); e == nil || e.Rank != c.rank || e.Code != c.code {
				t.Errorf("%v, want %v of rank %d", e, c.code, c.rank)
			}
		})
	}
}

func sayBye(m *Mesh, to int, h nativewire.Header) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.mu.conns[to]
	c.queueFrame(h)
	c.flush()
}

// TestGoodbyeIsPassedOn: rank 1 has seen the death of rank 2 and leaves. Rank 0, which has not, names it and tells rank
// 3 when it leaves too.
func TestGoodbyeIsPassedOn(t *testing.T) {
	meshes := connect(t, 4, nil)
	recvs := make([]*transport.Op, 4)
	for rank, from := range map[int]int{1: 2, 0: 1, 3: 0} {
		recvs[rank] = &transport.Op{Peer: from, Slot: 5, Buf: make([]byte, 1)}
		meshes[rank].Recv(recvs[rank])
	}
	meshes[1].mu.Lock() // rank 3 learns of it from rank 0 only
	meshes[3].mu.Lock()
	meshes[1].mu.conns[3].close(errClosed())
	meshes[3].mu.conns[1].close(errClosed())
	meshes[3].mu.Unlock()
	meshes[1].mu.Unlock()
	meshes[1].Cut(2)
	for _, rank := range []int{1, 0, 3} {
		if e, _ := errors.AsType[*cohort.Error](wait(t, meshes[rank], recvs[rank])); e == nil || e.Rank != 2 || e.Code != cohort.PeerLost {
			t.Errorf("rank %d: %v", rank, e)
		}
		_ = meshes[rank].Close()
	}
}

// TestOwnLossCountsMore than what a goodbye says.
func TestOwnLossCountsMore(t *testing.T) {
	losses := make(chan transport.Loss, 16)
	meshes := connectWith(t, 4, nil, func(c *Config) {
		if c.Rank == 0 {
			c.OnLost = func(l transport.Loss) { losses <- l }
		}
	})
	recv := &transport.Op{Peer: 1, Slot: 5, Buf: make([]byte, 1)}
	meshes[0].Recv(recv)
	meshes[3].Cut(0)
	if l := nextLoss(t, losses); l.Rank != 3 {
		t.Fatalf("%+v", l)
	}
	sayBye(meshes[1], 0, nativewire.Header{Type: nativewire.Bye, Slot: 3, Total: uint64(cohort.PeerLost)})
	if e, _ := errors.AsType[*cohort.Error](wait(t, meshes[0], recv)); e == nil || e.Rank != 3 {
		t.Errorf("rank 0 has lost rank 3, and says %v", e)
	}
}
