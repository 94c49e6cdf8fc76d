// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// The values of OpState.Flag.
const (
	opIdle uint32 = iota
	opPending
	opDone
)

// Begin marks op as posted. A mesh calls it first in Send and Recv.
func (op *Op) Begin() {
	if op.State.Done == nil {
		op.State.Done = make(chan struct{}, 1)
	}
	select {
	case <-op.State.Done: // the last use had no waiter
	default:
	}
	op.N, op.Source = 0, op.Peer
	op.State.Err, op.State.Next, op.State.Aux, op.State.Parts = nil, nil, 0, op.State.Parts[:0]
	atomic.StoreUint32(&op.State.Flag, opPending)
}

// Complete ends op. A mesh calls it exactly once per Begin, after the last access to op.Buf.
func (op *Op) Complete(err error) {
	done, set, whole := op.State.Done, op.Set, op.State.whole
	op.State.Err = err
	atomic.StoreUint32(&op.State.Flag, opDone)
	if err != nil && set != nil {
		set.Fail(err)
	}
	select {
	case done <- struct{}{}:
	default: // a signal is on its way already
	}
	if whole != nil {
		whole.partDone()
	}
}

// partDone notes that a part is complete. The last one completes op, in whichever goroutine that is.
func (op *Op) partDone() {
	if atomic.AddUint64(&op.State.Aux, ^uint64(0)) > 0 {
		return
	}
	var err error
	for i := range op.State.Parts {
		p := &op.State.Parts[i]
		op.N += p.N
		if err == nil {
			err = p.State.Err
		}
	}
	op.Complete(err)
}

// Nudge makes the waiters of op check again. A mesh whose waiters take turns in doing its work wakes the next one so.
func (op *Op) Nudge() {
	select {
	case op.State.Done <- struct{}{}:
	default: // a signal is on its way already
	}
}

// Completed reports whether op is complete, without waiting.
func (op *Op) Completed() bool { return atomic.LoadUint32(&op.State.Flag) == opDone }

// Await returns when op is complete, with its error, when another op of its set failed, with that one's error, or when
// ctx ends, with the context's.
func (op *Op) Await(ctx context.Context) error {
	var failed chan struct{}
	if op.Set != nil {
		failed = op.Set.failed
	}
	for !op.Completed() {
		failpoint.At("transport.op.await")
		select {
		case <-op.State.Done: // a late signal of an earlier use wakes too: look again
		case <-failed:
			if op.Completed() {
				return op.State.Err
			}
			return op.Set.Err()
		case <-ctx.Done():
			if op.Completed() {
				return op.State.Err
			}
			return cohort.FromContext(ctx, "link: wait")
		}
	}
	return op.State.Err
}

// Accepts reports whether a receive from any rank takes messages of this one.
func (op *Op) Accepts(rank int) bool { return len(op.From) == 0 || slices.Contains(op.From, rank) }

// Posted reports whether op was posted since the last Reset.
func (op *Op) Posted() bool { return atomic.LoadUint32(&op.State.Flag) != opIdle }

// Reset makes a complete op look like one that was never posted.
func (op *Op) Reset() { atomic.StoreUint32(&op.State.Flag, opIdle) }

// Set ties the ops of one collective together: when one of them fails, waiting for any other ends at once, because the
// collective cannot succeed any more.
type Set struct {
	mu     sync.Mutex
	err    error
	failed chan struct{} // closed at the first failure
}

// Reset makes the set ready for use. No op of it may be pending.
func (s *Set) Reset() {
	failpoint.At("transport.set.reset")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil || s.err != nil {
		s.failed = make(chan struct{})
	}
	s.err = nil
}

// Err returns the first failure, or nil.
func (s *Set) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Failed is closed when an op of the set has failed.
func (s *Set) Failed() <-chan struct{} { return s.failed }

// Fail ends the wait for any op of the set with err. The first failure counts.
func (s *Set) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.failed)
	}
}

// partAlign keeps the ends of parts off the middle of a cache line.
const partAlign = 64

// Divide marks op as posted, in n parts of equal length that a mesh posts in its place. It is complete when all of them
// are; then N is the sum of theirs, and its error the first one of a part, in their order. The memory of the parts is
// that of the last time, so that an op that is used again and again needs none.
func (op *Op) Divide(n int) []Op {
	op.Begin()
	if cap(op.State.Parts) < n {
		op.State.Parts = make([]Op, n)
	}
	op.State.Parts = op.State.Parts[:n]
	size := (len(op.Buf)/n + partAlign - 1) &^ (partAlign - 1)
	for i := range op.State.Parts {
		p := &op.State.Parts[i]
		from, to := min(i*size, len(op.Buf)), min((i+1)*size, len(op.Buf))
		if i == n-1 {
			to = len(op.Buf)
		}
		p.Peer, p.Slot, p.Buf = op.Peer, op.Slot, op.Buf[from:to:to]
		p.State.whole = op
	}
	atomic.StoreUint64(&op.State.Aux, uint64(n)) //nolint:gosec // a few
	return op.State.Parts
}

// Length is the length of the message that op posts, or of which it posts a part.
func (op *Op) Length() int {
	if whole := op.State.whole; whole != nil {
		return len(whole.Buf)
	}
	return len(op.Buf)
}

// Divided reports whether op was posted in parts.
func (op *Op) Divided() bool { return len(op.State.Parts) > 0 }

// Release forgets the memory that the parts of a complete op had.
func (op *Op) Release() {
	for i := range op.State.Parts {
		op.State.Parts[i].Buf = nil
	}
}
