// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo/wire"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/moment"
)

// Mesh is a link.Mesh over gloo's wire. With several devices it has one full mesh per device; an op runs on the device
// that its slot's tag selects, as in PyTorch.
type Mesh struct {
	rank, size int
	generation Generation
	devices    []*device
	judge      link.Judge
	watch      *watch

	closeOnce sync.Once
	closed    chan struct{}
}

var (
	_ link.Mesh = (*Mesh)(nil)
	_ Watcher   = (*Mesh)(nil)
)

// Rank returns this process's rank.
func (m *Mesh) Rank() int { return m.rank }

// Size returns the number of ranks.
func (m *Mesh) Size() int { return m.size }

// Generation returns the generation of rendezvous that was used.
func (m *Mesh) Generation() Generation { return m.generation }

// Devices returns the number of devices.
func (m *Mesh) Devices() int { return len(m.devices) }

func (m *Mesh) device(slot uint64) *device {
	if len(m.devices) == 1 {
		return m.devices[0]
	}
	return m.devices[wire.TagOf(slot)%uint64(len(m.devices))]
}

// Send posts a message.
func (m *Mesh) Send(op *link.Op) { m.device(op.Slot).send(op) }

// Recv posts room for a message.
func (m *Mesh) Recv(op *link.Op) { m.device(op.Slot).recv(op) }

// Wait returns when op is complete.
func (m *Mesh) Wait(ctx context.Context, op *link.Op) error {
	if op.Completed() {
		return op.State.Err
	}
	return m.device(op.Slot).wait(ctx, op)
}

// Cancel withdraws an op that its peer has not matched yet; see match.Machine.Cancel.
func (m *Mesh) Cancel(op *link.Op) bool { return m.device(op.Slot).cancel(op) }

// Fail ends every op with err and closes all connections, so that peers notice at once.
func (m *Mesh) Fail(err error) {
	err = m.judge.Word(err) // before a peer sees a connection end
	for _, d := range m.devices {
		d.fail(err)
	}
}

// Err returns what the mesh failed with, or nil.
func (m *Mesh) Err() error {
	for _, d := range m.devices {
		if err := d.err(); err != nil {
			return err
		}
	}
	return nil
}

// Awaited returns the ranks that ops wait for. Any of them may itself wait for another, which gloo does not tell.
func (m *Mesh) Awaited() (ranks []int) {
	for r := range m.size {
		for _, d := range m.devices {
			moment.At("gloo.awaited")
			d.mu.Lock()
			waits := d.machine.Pending(r)
			d.mu.Unlock()
			if waits {
				ranks = append(ranks, r)
				break
			}
		}
	}
	return ranks
}

// Close sends what is queued, ends all connections and joins all goroutines.
func (m *Mesh) Close() error {
	m.closeOnce.Do(func() {
		moment.At("gloo.mesh.close")
		m.watch.close()
		var wg sync.WaitGroup
		for _, d := range m.devices {
			wg.Go(d.close)
		}
		wg.Wait()
		moment.At("gloo.mesh.close.tasks")
		m.watch.tasks.Wait()
		m.watch.order.close()
		close(m.closed)
	})
	moment.At("gloo.mesh.closed")
	<-m.closed
	return nil
}

func errClosed() error { return dist.New("gloo: mesh", dist.Closed, "the mesh was closed") }
