// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"sync"

	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// bond ties the lanes together: what befalls one of them befalls all. The group learns of it from the first lane only.
type bond struct {
	cfg nativetcp.Config // the group's

	mu struct {
		sync.Mutex
		lanes []*nativetcp.Mesh // once all of them are there
		gone  []transport.Loss  // before that
		err   error             // the first failure
		end   func(cause error) // of the connecting
	}
}

// watch has end called when a rank is lost or the first lane fails, at once if that was so before.
func (b *bond) watch(end func(error)) {
	failpoint.At("lanes.bond.watch")
	b.mu.Lock()
	b.mu.end = end
	err := b.mu.err
	if err == nil && len(b.mu.gone) > 0 {
		err = b.mu.gone[0].Err
	}
	b.mu.Unlock()
	if end != nil && err != nil {
		end(err)
	}
}

// tie gives the bond its lanes, and hands them what has befallen some of them meanwhile.
func (b *bond) tie(lanes []*nativetcp.Mesh) {
	failpoint.At("lanes.bond.tie")
	b.mu.Lock()
	b.mu.lanes = lanes
	gone, err := b.mu.gone, b.mu.err
	b.mu.gone = nil
	b.mu.Unlock()
	for _, m := range lanes {
		for _, loss := range gone {
			if loss.How == transport.Died {
				m.MarkLost(loss.Rank, loss.Err)
			}
		}
		if err != nil {
			m.FailSilently(err)
		}
	}
}

// failed is called when a lane has failed. The group is notified by the first.
func (b *bond) failed(err error) {
	failpoint.At("lanes.bond.fail")
	b.mu.Lock()
	lanes, end := b.mu.lanes, b.mu.end
	first := b.mu.err == nil
	if first {
		b.mu.err = err
	}
	b.mu.Unlock()
	if end != nil {
		end(err)
	}
	for _, m := range lanes {
		m.FailSilently(err)
	}
	if first && b.cfg.OnFail != nil {
		b.cfg.OnFail(err)
	}
}

// lost is called when the first lane has lost a rank.
func (b *bond) lost(loss transport.Loss) {
	b.lostBeside(loss)
	if b.cfg.OnLost != nil {
		b.cfg.OnLost(loss)
	}
}

// lostBeside is told by another lane. The first one reports what it is handed as its own loss, and a rank that leaves says so on all lanes.
func (b *bond) lostBeside(loss transport.Loss) {
	failpoint.At("lanes.bond.lose")
	b.mu.Lock()
	lanes, end := b.mu.lanes, b.mu.end
	if lanes == nil {
		b.mu.gone = append(b.mu.gone, loss)
	}
	b.mu.Unlock()
	if end != nil {
		end(loss.Err)
	}
	if loss.How != transport.Died {
		return
	}
	for _, m := range lanes {
		m.MarkLost(loss.Rank, loss.Err)
	}
}
