// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package transport is the interface between algorithms and wires: a mesh of ranks that exchange messages.
//
// An algorithm posts sends and receives and waits for them; a mesh (gloo's wire, the native TCP wire, an in-memory
// network) moves the bytes. Messages match first-in first-out per (sender, receiver, slot); slots are independent.
package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// AnyPeer as the Peer of a receive takes the first message on its slot from any of Op.From.
const AnyPeer = -1

// Op is one posted send or receive. The caller owns it, may embed it in longer-lived state and may reuse it once it is
// complete; a mesh never allocates for it. Buf belongs to the mesh from the post to the completion.
type Op struct {
	Peer int    // the other rank, or AnyPeer
	Slot uint64 // what the message is matched by
	Buf  []byte // data to send, or room to receive
	From []int  // with AnyPeer: the ranks that may send; empty means all others

	Set *Set // ops that stand or fall together; may be nil

	N      int // bytes received, at most len(Buf); a shorter message leaves the rest untouched
	Source int // the rank that sent, after a receive completed

	// State belongs to the mesh.
	State OpState
}

// OpState is the mesh's part of an Op.
type OpState struct {
	Done chan struct{} // made once, signalled (not closed) at completion; capacity 1
	Err  error
	Next *Op // intrusive list in the mesh's queues
	Flag uint32
	Aux  uint64

	Parts []Op // of an op that is moved in parts, see Divide
	whole *Op  // of a part
}

// Mesh connects the ranks of one group. Posting never blocks. All methods are safe for concurrent use.
type Mesh interface {
	Rank() int
	Size() int
	// Send posts op.Buf to op.Peer. It is complete when the buffer may be reused.
	Send(op *Op)
	// Recv posts room for a message from op.Peer. A message that is longer than the room is an error, never an overflow.
	Recv(op *Op)
	// Wait returns when op is complete, with its error. The waiting goroutine may do the mesh's work meanwhile. When ctx
	// ends first, Wait returns the context's error and the op goes on: the caller must Cancel it, Wait again, or Fail the mesh.
	Wait(ctx context.Context, op *Op) error
	// Cancel withdraws an op that no peer has matched yet and reports whether it did; the op is then complete with
	// cohort.Aborted.
	Cancel(op *Op) bool
	// Fail ends every pending and later op with err. The first call wins.
	Fail(err error)
	// Close releases connections and joins goroutines; pending ops end with cohort.Closed. It is idempotent.
	Close() error
}

// Judge is a group's word on why it fails. A mesh on a wire that cannot tell a rank that died from one that has given the
// group up calls it with its own reason before it does anything that other ranks can notice, such as closing connections,
// and fails with what it returns: the reason that the first rank of the group has found.
//
// It asks the store, which takes at most half a second; a mesh holds no lock meanwhile. It may be called from any goroutine
// and any number of times; only the first call takes time.
type Judge func(err error) error

// Reason returns what the judge says about err. Without a judge it is err.
func (j Judge) Reason(err error) error {
	if j == nil {
		return err
	}
	return j(err)
}

// How is how a rank was lost.
type How uint8

// The ways.
const (
	// Died means that its process has ended, its connection broke or its heartbeat stopped: the group cannot go on.
	Died How = iota
	// Left means that it closed its end of the group: only what needs it fails.
	Left
	// Ended means that its connection ended on a wire without a shutdown message (a PyTorch rank on gloo's): it may have finished its
	// program or died. An engine that finds out later that it died says so in a second Loss.
	Ended
)

// String says how.
func (h How) String() string { return [...]string{"died", "left", "ended"}[h] }

// Loss is what an engine tells its group about a rank that is gone, whether or not an operation runs. Err is a *cohort.Error
// that names the rank, its host or process, and the reason.
//
// Engines call the function that their Config.OnLost holds from a goroutine that their Close waits for, without a lock held.
// It must not call Close, and it may be called before the function that made the engine has returned.
type Loss struct {
	Rank int
	How  How
	Err  error
}

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
