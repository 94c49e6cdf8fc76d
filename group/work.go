// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/tensor"
)

// NoSource is what [Work.SourceRank] returns where there is no sender.
const NoSource = -1

// Work is an operation that was posted: it completes exactly once. The tensors of the operation belong to it until then.
//
// It corresponds to torch.distributed.Work. Differences: Success is defined only after completion (PyTorch's is_success
// says true while the operation runs), the end of a wait never ends the operation, and Abort works.
type Work struct {
	op     OpType
	seq    uint64
	group  *Group
	source int // sender of a receive

	// Set before the operation is queued.
	req     coll.Request // of a collective
	message link.Op      // of a point-to-point operation
	p2p     bool
	steps   []step       // what to run instead of one request
	finish  func() error // after success: move results to where the user wants them
	outputs []*tensor.Tensor
	subject [2]*tensor.Tensor // what a check before the operation compares; see detail.go
	timeout time.Duration
	record  uint64 // in the flight recorder
	posted  time.Time
	begun   time.Time
	next    *Work // in the group's queue
	waiters int   // goroutines that wait for it; guarded by the group's mutex
	future  *dist.Future[[]*tensor.Tensor]

	completed atomic.Bool
	mu        sync.Mutex
	finished  bool
	err       error
	ended     time.Time
	done      chan struct{}
	callbacks []func(*Work)
}

// step is a part of an operation that consists of several messages or collectives.
type step func(ctx context.Context) error

// Done is closed when the operation is complete.
func (w *Work) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done = make(chan struct{})
		if w.finished {
			close(w.done)
		}
	}
	return w.done
}

// Completed reports whether the operation has ended, well or not, without waiting.
// It corresponds to Work.is_completed.
func (w *Work) Completed() bool {
	if w.completed.Load() {
		return true
	}
	if w.p2p && w.group != nil {
		w.group.reap(w)
	}
	return w.completed.Load()
}

// Success reports whether the operation has ended well. It is false while it runs.
// It corresponds to Work.is_success, which says true while the operation runs.
func (w *Work) Success() bool { return w.Completed() && w.err == nil }

// Err returns why the operation failed: nil while it runs and after success. It corresponds to Work.exception.
func (w *Work) Err() error {
	if !w.Completed() {
		return nil
	}
	return w.err
}

// Result returns the output tensors, or the operation's error. Before completion it is an error.
// It corresponds to Work.result.
func (w *Work) Result() ([]*tensor.Tensor, error) {
	if !w.Completed() {
		return nil, dist.New("group: result", dist.InvalidArgument, w.op.String()+" is still running: wait for it first")
	}
	return w.outputs, w.err
}

// Wait returns when the operation is complete, with its error. When ctx ends first it returns the context's error; the
// operation goes on and may be waited for again. Waiting helps: the calling goroutine does the operation's work when
// nobody else does. It corresponds to Work.wait.
func (w *Work) Wait(ctx context.Context) error {
	if w.completed.Load() {
		return w.err
	}
	if w.group != nil {
		return w.group.wait(ctx, w)
	}
	select {
	case <-w.Done():
		return w.err
	case <-ctx.Done():
		if w.completed.Load() {
			return w.err
		}
		return dist.FromContext("group: wait", ctx)
	}
}

// Abort ends the operation. A point-to-point operation that no peer has matched ends alone, with [dist.Aborted]. A
// collective, and a message that is half way, take the whole group with them, on all ranks that can be told: the ranks
// would be out of step. A new group can be made afterwards. Abort of a complete operation does nothing.
func (w *Work) Abort() {
	if w.completed.Load() || w.group == nil {
		return
	}
	w.group.abort(w)
}

// SourceRank returns the group rank that sent what a receive got. It is an error before completion and for operations
// other than receives.
func (w *Work) SourceRank() (int, error) {
	switch {
	case w.op != OpRecv && w.op != OpRecvAny:
		return NoSource, dist.New("group: source rank", dist.InvalidArgument, w.op.String()+" has no source rank: only receives have one")
	case !w.Completed():
		return NoSource, dist.New("group: source rank", dist.InvalidArgument, "the receive is not complete")
	case w.err != nil:
		return NoSource, w.err
	}
	return w.source, nil
}

// Duration returns the time from the start of the operation to its completion; while it runs, the time up to now, and
// before it has started 0.
func (w *Work) Duration() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.begun.IsZero():
		return 0
	case w.finished:
		return w.ended.Sub(w.begun)
	}
	return time.Since(w.begun)
}

// Seq returns the number of the operation in its group. Collectives and point-to-point operations are counted apart, each
// from 0. It corresponds to Work._get_sequence_number.
func (w *Work) Seq() uint64 { return w.seq }

// OpType returns the kind of the operation. It corresponds to Work.retrieve_op_type.
func (w *Work) OpType() OpType { return w.op }

// OnDone calls f once when the operation is complete: at once if it is. f must not block, and runs in the goroutine that
// completed the operation. It is how a profiler sees the end of operations.
func (w *Work) OnDone(f func(*Work)) {
	w.mu.Lock()
	if !w.finished {
		w.callbacks = append(w.callbacks, f)
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	f(w)
}

// Future returns the operation as a future of its output tensors. It corresponds to Work.get_future.
func (w *Work) Future() *dist.Future[[]*tensor.Tensor] {
	w.mu.Lock()
	if w.future != nil {
		defer w.mu.Unlock()
		return w.future
	}
	p := dist.NewPromise[[]*tensor.Tensor]()
	w.future = p.Future()
	w.mu.Unlock()
	w.OnDone(func(w *Work) { p.Complete(w.outputs, w.err) })
	return p.Future()
}

// FromFuture returns a Work that completes with future. It corresponds to Work::create_from_future. Its Wait takes any
// context; Abort does nothing, since the future belongs to its maker.
func FromFuture(future *dist.Future[[]*tensor.Tensor]) *Work {
	w := &Work{op: OpUnknown, source: NoSource, future: future, begun: time.Now()}
	future.OnDone(func(outputs []*tensor.Tensor, err error) {
		w.outputs = outputs
		w.complete(err)
	})
	return w
}

// failed returns a Work that has ended with err without taking part in anything.
func failed(op OpType, err error) *Work {
	w := &Work{op: op, source: NoSource}
	w.complete(err)
	return w
}

// complete ends the operation now.
func (w *Work) complete(err error) { w.completeAt(time.Now(), err) }

// completeAt ends the operation, once, and reports whether it did.
func (w *Work) completeAt(at time.Time, err error) bool {
	w.mu.Lock()
	if w.finished {
		w.mu.Unlock()
		return false
	}
	w.finished, w.err, w.ended = true, err, at
	if err != nil {
		w.outputs = nil
	}
	callbacks, done := w.callbacks, w.done
	w.callbacks = nil
	w.completed.Store(true)
	w.mu.Unlock()
	if done != nil {
		close(done)
	}
	for _, f := range callbacks {
		f(w)
	}
	return true
}
