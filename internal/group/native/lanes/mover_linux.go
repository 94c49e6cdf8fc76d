// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// posted is a part that the mover posts.
type posted struct {
	op   *transport.Op
	send bool
}

// mover moves the parts of one lane.
type mover struct {
	lane   *nativetcp.Mesh
	live   *atomic.Int32 // collectives that have parts
	queued atomic.Int32
	wake   chan struct{}
	stop   chan struct{}
	taken  []posted // those that it posts now

	mu struct {
		sync.Mutex
		queue []posted
		awake bool // it will look at the queue
		over  bool // no goroutine polls it any more
	}
}

func newMover(lane *nativetcp.Mesh, live *atomic.Int32) *mover {
	return &mover{lane: lane, live: live, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// push hands a part over. On a lane that is closed it is complete when push returns.
func (v *mover) push(p posted) {
	failpoint.At("lanes.push")
	v.mu.Lock()
	over, awake := v.mu.over, v.mu.awake
	if !over {
		v.mu.queue = append(v.mu.queue, p)
		v.queued.Store(int32(len(v.mu.queue))) //nolint:gosec // as many as are posted at a time
		v.mu.awake = true
	}
	v.mu.Unlock()
	switch {
	case over:
		v.post(p)
	case awake:
		v.lane.WakeDriver()
	default:
		failpoint.At("lanes.push.wake")
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
}

func (v *mover) post(p posted) {
	if p.send {
		v.lane.Send(p.op)
	} else {
		v.lane.Recv(p.op)
	}
}

// run is the mover's goroutine.
func (v *mover) run() {
	for {
		failpoint.At("lanes.mover.sleep")
		select {
		case <-v.wake:
			for v.attend() {
			}
		case <-v.stop:
			v.postAll()
			return
		}
	}
}

// attend drives the lane while there are collectives with parts. It reports whether there are more by now.
func (v *mover) attend() bool {
	open := v.lane.DriveWhile(v.more)
	v.postAll() // on a lane that is closed that ends them
	failpoint.At("lanes.mover.look")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.awake = len(v.mu.queue) > 0 || open && v.live.Load() > 0
	return v.mu.awake
}

// more posts what was handed over and reports whether there is, or will be, something to move.
func (v *mover) more() bool {
	if v.queued.Load() > 0 {
		v.postAll()
	}
	return v.live.Load() > 0
}

// postAll posts what was handed over, in that order.
func (v *mover) postAll() {
	failpoint.At("lanes.mover.take")
	v.mu.Lock()
	v.taken, v.mu.queue = v.mu.queue, v.taken[:0]
	v.queued.Store(0)
	v.mu.Unlock()
	for _, p := range v.taken {
		v.post(p)
	}
	clear(v.taken)
}

// end ends the mover, whose lane is closed.
func (v *mover) end() {
	failpoint.At("lanes.mover.end")
	v.mu.Lock()
	v.mu.over = true
	v.mu.Unlock()
	close(v.stop)
}
