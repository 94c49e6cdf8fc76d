// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/collargs"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/sched"
	"github.com/cohort-dist/cohort/tensor"
)

// Work is an operation that was posted: it completes exactly once. The tensors of the operation belong to it until then.
//
// It corresponds to torch.distributed.Work. Differences: Success is defined only after completion (PyTorch's is_success
// says true while the operation runs), the end of a wait never ends the operation, and Abort works.
type Work struct {
	op     OpType
	seq    uint64
	group  *Group
	source dist.Rank // sender of a receive

	// Set before the operation is queued.
	call      collargs.Call // of a collective; of a message only the element type, the outputs and what to do with them
	message   link.Op       // of a point-to-point operation
	handed    atomic.Bool   // the mesh has the message
	p2p       bool
	steps     []step            // what to run instead of one request
	stepped   int               // steps that have been run; the runner's
	refused   *collargs.Refusal // it is checked and not run; see refuse.go
	timeout   time.Duration
	record    uint64 // in the flight recorder
	trace     string // that it is part of, where somebody listens
	posted    time.Time
	begun     time.Time
	withdrawn atomic.Pointer[dist.Error] // why the group itself took a message back
	item      sched.Item[Work]           // the scheduler's part; guarded by the group's mutex

	// err is set before completed, and read after it.
	completed atomic.Bool
	err       error

	mu struct {
		sync.Mutex
		finished  bool
		ended     time.Time
		done      chan struct{}
		future    *dist.Future[[]*tensor.Tensor]
		promise   *dist.Promise[[]*tensor.Tensor]
		callbacks []func(*Work)
	}
}

// step is a part of an operation that consists of several messages or collectives.
type step func(ctx context.Context) error

// Done returns a channel that is closed when the operation is complete.
func (w *Work) Done() <-chan struct{} {
	moment.At("group.work.done")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.done == nil {
		w.mu.done = make(chan struct{})
		if w.mu.finished {
			close(w.mu.done)
		}
	}
	return w.mu.done
}

// Completed reports whether the operation has ended, successfully or not, and does not wait for that. Of a message that has failed it
// first finds out which rank is the reason, which may take a moment. It corresponds to Work.is_completed.
func (w *Work) Completed() bool {
	if w.completed.Load() {
		return true
	}
	if w.p2p && w.group != nil {
		w.group.reap(w)
	}
	return w.completed.Load()
}

// Success reports whether the operation has succeeded. It is false while it runs. It corresponds to Work.is_success,
// which says true while the operation runs.
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
	return w.call.Outputs, w.err
}

// Wait returns when the operation is complete, with its error. If ctx ends first, it returns the context's error; the
// operation continues and may be waited for again. The waiting goroutine does the operation's work if no other goroutine
// does. It corresponds to Work.wait.
func (w *Work) Wait(ctx context.Context) error {
	if w.group != nil && !w.completed.Load() {
		return w.group.wait(ctx, w)
	}
	return w.await(ctx)
}

// await waits until somebody else completes the operation.
func (w *Work) await(ctx context.Context) error {
	if !w.completed.Load() {
		moment.At("group.work.wait")
		select {
		case <-w.Done():
		case <-ctx.Done():
			if !w.completed.Load() {
				return w.unfinished(ctx)
			}
		}
	}
	return w.err
}

// unfinished is the error of a wait that ctx has ended. It names the operation, which goes on.
func (w *Work) unfinished(ctx context.Context) error {
	return dist.Ended(ctx, "group: wait for "+w.name())
}

// Abort ends the operation. A point-to-point operation that no peer has matched ends alone, with [dist.Aborted]. A
// collective, or a message that is partly sent, ends the whole group, on all ranks that can be reached, because the ranks
// would be out of step. A new group can be formed afterwards. Abort of a complete operation does nothing.
func (w *Work) Abort() {
	if w.completed.Load() || w.group == nil {
		return
	}
	w.group.abort(w)
}

// SourceRank returns the group rank that sent what a receive got. It is an error before completion and for operations
// other than receives.
func (w *Work) SourceRank() (dist.Rank, error) {
	switch {
	case w.op != OpRecv && w.op != OpRecvAny:
		return dist.NoRank, dist.New("group: source rank", dist.InvalidArgument, w.op.String()+" has no source rank: only receives have one")
	case !w.Completed():
		return dist.NoRank, dist.New("group: source rank", dist.InvalidArgument, "the receive is not complete")
	case w.err != nil:
		return dist.NoRank, w.err
	}
	return w.source, nil
}

// Duration returns the time from the start of the operation to its completion; while it runs, the time up to now, and
// before it has started 0.
func (w *Work) Duration() time.Duration {
	w.mu.Lock() // no point: it only looks
	defer w.mu.Unlock()
	switch {
	case w.begun.IsZero():
		return 0
	case w.mu.finished:
		return w.mu.ended.Sub(w.begun)
	}
	return time.Since(w.begun)
}

// Seq returns the number of the operation in its group. Collectives and point-to-point operations are counted apart, each
// from 0. It corresponds to Work._get_sequence_number.
func (w *Work) Seq() uint64 { return w.seq }

// OpType returns the kind of the operation. It corresponds to Work.retrieve_op_type.
func (w *Work) OpType() OpType { return w.op }

// OnDone calls f once when the operation is complete, or at once if it is, in a goroutine of its own: f may block and may use
// the group. Callbacks that were added before the completion run one after the other. f gets a copy of the Work that stays
// as it is when the Work is used again; see [Reuse]. A panic in f ends f only; see [dist.Future.OnDone]. A nil f is ignored.
func (w *Work) OnDone(f func(*Work)) {
	if f == nil {
		return
	}
	moment.At("group.work.on_done")
	w.mu.Lock()
	if !w.mu.finished {
		w.mu.callbacks = append(w.mu.callbacks, f)
		w.mu.Unlock()
		return
	}
	seen := w.copyLocked(w.mu.ended, w.err)
	w.mu.Unlock()
	callBack(seen, f)
}

// callBack runs callbacks in a goroutine of their own.
func callBack(seen *Work, callbacks ...func(*Work)) {
	p := dist.NewPromise[*Work]()
	for _, f := range callbacks {
		p.Future().OnDone(func(w *Work, _ error) { f(w) })
	}
	p.Complete(seen, nil)
}

// copyLocked returns the operation as it is when it has ended at that time with err, for those who look at it afterwards.
func (w *Work) copyLocked(at time.Time, err error) *Work {
	c := &Work{op: w.op, seq: w.seq, source: w.source, p2p: w.p2p, timeout: w.timeout, posted: w.posted, begun: w.begun, err: err}
	if err == nil {
		c.call.Outputs = slices.Clone(w.call.Outputs)
	}
	c.mu.finished, c.mu.ended = true, at
	c.completed.Store(true)
	return c
}

// Future returns the operation as a future of its output tensors. It corresponds to Work.get_future.
func (w *Work) Future() *dist.Future[[]*tensor.Tensor] {
	moment.At("group.work.future")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.future == nil {
		p := dist.NewPromise[[]*tensor.Tensor]()
		w.mu.future = p.Future()
		if w.mu.finished {
			p.Complete(slices.Clone(w.call.Outputs), w.err)
		} else {
			w.mu.promise = p
		}
	}
	return w.mu.future
}

// FromFuture returns a Work that completes with future. It corresponds to Work::create_from_future. Its Wait takes any
// context; Abort does nothing, since the future belongs to its maker.
func FromFuture(future *dist.Future[[]*tensor.Tensor]) *Work {
	if future == nil {
		return failed(OpUnknown, dist.New("group: from future", dist.InvalidArgument, "the future is nil"))
	}
	w := &Work{op: OpUnknown, source: dist.NoRank, begun: time.Now()}
	w.mu.future = future
	future.OnDone(func(outputs []*tensor.Tensor, err error) {
		w.call.Outputs = outputs
		w.complete(err)
	})
	return w
}

// failed returns a Work that has ended with err without taking part in anything.
func failed(op OpType, err error) *Work {
	w := &Work{op: op, source: dist.NoRank}
	w.complete(err)
	return w
}

// now is the time, for an operation that was posted. It is counted from then, which takes one reading of a clock instead of two.
func (w *Work) now() time.Time { return w.posted.Add(time.Since(w.posted)) }

// complete ends the operation now.
func (w *Work) complete(err error) { w.completeAt(time.Now(), err) }

// completeAt ends the operation, once.
func (w *Work) completeAt(at time.Time, err error) {
	moment.At("group.complete")
	w.mu.Lock()
	if w.mu.finished {
		w.mu.Unlock()
		return
	}
	w.mu.finished, w.err, w.mu.ended = true, err, at
	if err != nil {
		w.call.Outputs = nil
	}
	callbacks, done, promise := w.mu.callbacks, w.mu.done, w.mu.promise
	w.mu.callbacks, w.mu.promise = nil, nil
	var seen *Work
	if len(callbacks) > 0 || promise != nil {
		seen = w.copyLocked(at, err)
	}
	w.completed.Store(true)
	w.mu.Unlock()
	// From here on the Work is its owner's, who may use it for the next operation.
	if done != nil {
		close(done)
	}
	if promise != nil {
		promise.Complete(seen.call.Outputs, err)
	}
	if len(callbacks) > 0 {
		callBack(seen, callbacks...)
	}
}

// recycle makes a complete Work new again.
func (w *Work) recycle() {
	w.call.Reset()
	w.message = link.Op{State: link.OpState{Done: w.message.State.Done}}
	w.group, w.p2p, w.steps, w.stepped, w.refused = nil, false, nil, 0, nil
	w.record, w.trace, w.posted, w.begun, w.err = 0, "", time.Time{}, time.Time{}, nil
	w.item.Reset()
	w.withdrawn.Store(nil)
	w.handed.Store(false)
	moment.At("group.work.recycle")
	w.mu.Lock()
	w.mu.finished, w.mu.ended = false, time.Time{}
	w.mu.done, w.mu.future, w.mu.promise, w.mu.callbacks = nil, nil, nil, nil
	w.mu.Unlock()
	w.completed.Store(false)
}
