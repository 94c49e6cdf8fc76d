// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Mesh is a transport.Mesh over gloo's wire. With several devices it has one full mesh per device; an op runs on the device
// that its slot's tag selects, as in PyTorch.
type Mesh struct {
	rank, size int
	generation Generation
	devices    []*device
	judge      transport.Judge
	watch      *watch

	closeOnce sync.Once
	closed    chan struct{}
}

var (
	_ transport.Mesh = (*Mesh)(nil)
	_ Watcher        = (*Mesh)(nil)
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
	return m.devices[gloowire.TagOf(slot)%uint64(len(m.devices))]
}

// Send posts a message.
func (m *Mesh) Send(op *transport.Op) { m.device(op.Slot).send(op) }

// Recv posts room for a message.
func (m *Mesh) Recv(op *transport.Op) { m.device(op.Slot).recv(op) }

// Wait returns when op is complete.
func (m *Mesh) Wait(ctx context.Context, op *transport.Op) error {
	if op.Completed() {
		return op.State.Err
	}
	return m.device(op.Slot).wait(ctx, op)
}

// Cancel withdraws an op that its peer has not matched yet; see match.Machine.Cancel.
func (m *Mesh) Cancel(op *transport.Op) bool { return m.device(op.Slot).cancel(op) }

// Fail ends every op with err and closes all connections, so that peers notice at once.
func (m *Mesh) Fail(err error) {
	err = m.judge.Reason(err) // before a peer sees a connection end
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

// Awaited returns the ranks that ops wait for. Any of them may itself wait for another, which gloo does not report.
func (m *Mesh) Awaited() (ranks []int) {
	for r := range m.size {
		for _, d := range m.devices {
			failpoint.At("gloo.awaited")
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
		failpoint.At("gloo.mesh.close")
		m.watch.close()
		var wg sync.WaitGroup
		for _, d := range m.devices {
			wg.Go(d.close)
		}
		wg.Wait()
		failpoint.At("gloo.mesh.close.tasks")
		m.watch.tasks.Wait()
		m.watch.order.close()
		close(m.closed)
	})
	failpoint.At("gloo.mesh.closed")
	<-m.closed
	return nil
}

func errClosed() error { return cohort.New("gloo: mesh", cohort.Closed, "the mesh was closed") }
