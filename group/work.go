// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Work is an operation that was posted: it completes exactly once. The tensors of the operation belong to it until then.
//
// It corresponds to torch.distributed.Work. Differences: Success is defined only after completion (PyTorch's is_success
// says true while the operation runs), the end of a wait never ends the operation, and Abort works.
type Work struct {
	op    OpType
	seq   uint64
	group *Group // nil before it is posted, and where no group runs it

	call      collective.Call // of a collective; of a message only the element type, the outputs and what to do with them
	steps     steps           // what to run instead of the call's one request
	message   message
	submitted submission
	item      opsched.Item[Work] // the scheduler's part; guarded by the group's mutex
	outcome   outcome
}

// steps are an operation that consists of several messages or collectives. They belong to the runner.
type steps struct {
	list []step // nil where the operation has none
	over int    // so many of them
}

type step func(ctx context.Context) error

func (s *steps) add(f step) { s.list = append(s.list, f) }

// run goes on with the steps. One that was interrupted runs again.
func (s *steps) run(ctx context.Context) error {
	for s.over < len(s.list) {
		if err := s.list[s.over](ctx); err != nil {
			return err
		}
		s.over++
	}
	return nil
}

// posting is when an operation was posted, how long it may take, and where that is noted.
type submission struct {
	at      time.Time
	timeout time.Duration
	record  uint64 // in the flight recorder
	trace   string // that it is part of, where a hook is set
	checked bool   // with the other ranks, where PyTorch's do that
	awaited bool   // its poster waits for it at once
}

// now is the time. It is counted from the posting, which takes one reading of a clock instead of two.
func (s *submission) now() time.Time { return s.at.Add(time.Since(s.at)) }

// deadline is when the operation must be over.
func (s *submission) deadline() time.Time { return s.at.Add(s.timeout) }

// workOf returns a Work for an operation.
func workOf(op OpType) *Work {
	w := &Work{op: op}
	w.message.source = cohort.NoRank
	return w
}

// Done returns a channel that is closed when the operation is complete.
func (w *Work) Done() <-chan struct{} { return w.outcome.done() }

// Completed reports whether the operation has ended, successfully or not, and does not wait for that. Of a message that has failed it
// first finds out which rank is the reason, which may take a moment. It corresponds to Work.is_completed.
func (w *Work) Completed() bool {
	if w.outcome.over.Load() {
		return true
	}
	if w.op.p2p() && w.group != nil {
		w.group.reap(w)
	}
	return w.outcome.over.Load()
}

// Success reports whether the operation has succeeded. It is false while it runs. It corresponds to Work.is_success,
// which says true while the operation runs.
func (w *Work) Success() bool { return w.Completed() && w.outcome.err == nil }

// Err returns why the operation failed: nil while it runs and after success. It corresponds to Work.exception.
func (w *Work) Err() error {
	if !w.Completed() {
		return nil
	}
	return w.outcome.err
}

// Result returns the output tensors, or the operation's error. Before completion it is an error.
// It corresponds to Work.result.
func (w *Work) Result() ([]*tensor.Tensor, error) {
	if !w.Completed() {
		return nil, cohort.New("group: result", cohort.InvalidArgument, w.op.String()+" is still running: wait for it first")
	}
	return w.call.Outputs, w.outcome.err
}

// Wait returns when the operation is complete, with its error. If ctx ends first, it returns the context's error; the
// operation continues and may be waited for again. The waiting goroutine does the operation's work if no other goroutine
// does. It corresponds to Work.wait.
func (w *Work) Wait(ctx context.Context) error {
	if w.group != nil && !w.outcome.over.Load() {
		return w.group.wait(ctx, w)
	}
	return w.await(ctx)
}

// await waits until another goroutine completes the operation.
func (w *Work) await(ctx context.Context) error {
	if !w.outcome.over.Load() {
		failpoint.At("group.work.wait")
		select {
		case <-w.Done():
		case <-ctx.Done():
			if !w.outcome.over.Load() {
				return w.unfinished(ctx)
			}
		}
	}
	return w.outcome.err
}

// unfinished is the error of a wait that ctx has ended. It names the operation, which goes on.
func (w *Work) unfinished(ctx context.Context) error {
	return cohort.Ended(ctx, "group: wait for "+w.name())
}

// Abort ends the operation. A point-to-point operation that no peer has matched ends alone, with [cohort.Aborted]. A
// collective, or a message that is partly sent, ends the whole group, on all ranks that can be reached, because the ranks
// would be out of step. A new group can be formed afterwards. Abort of a complete operation does nothing.
func (w *Work) Abort() {
	if w.outcome.over.Load() || w.group == nil {
		return
	}
	w.group.abort(w)
}

// SourceRank returns the group rank that sent what a receive got. It is an error before completion and for operations
// other than receives.
func (w *Work) SourceRank() (cohort.Rank, error) {
	switch {
	case w.op != OpRecv && w.op != OpRecvAny:
		return cohort.NoRank, cohort.New("group: source rank", cohort.InvalidArgument,
			w.op.String()+" has no source rank: only receives have one")
	case !w.Completed():
		return cohort.NoRank, cohort.New("group: source rank", cohort.InvalidArgument, "the receive is not complete")
	case w.outcome.err != nil:
		return cohort.NoRank, w.outcome.err
	}
	return w.message.source, nil
}

// Duration returns the time from the start of the operation to its completion; while it runs, the time up to now, and
// before it has started 0.
func (w *Work) Duration() time.Duration {
	o := &w.outcome
	if g := w.group; !o.over.Load() && g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
	}
	if o.over.Load() {
		return o.took(o.ended)
	}
	return o.took(time.Now())
}

// Seq returns the number of the operation in its group. Collectives and point-to-point operations are counted apart, each
// from 0. It corresponds to Work._get_sequence_number.
func (w *Work) Seq() uint64 { return w.seq }

// OpType returns the kind of the operation. It corresponds to Work.retrieve_op_type.
func (w *Work) OpType() OpType { return w.op }

// OnDone calls f once when the operation is complete, or at once if it is, in a goroutine of its own: f may block and may use
// the group. Callbacks that were added before the completion run one after the other. f gets a copy of the Work that stays
// as it is when the Work is used again; see [Reuse]. A panic in f ends f only; see [cohort.Future.OnDone]. A nil f is ignored.
func (w *Work) OnDone(f func(*Work)) {
	if f == nil {
		return
	}
	o := &w.outcome
	failpoint.At("group.work.on_done")
	o.mu.Lock()
	if !o.over.Load() {
		o.mu.waiters.callbacks = append(o.mu.waiters.callbacks, f)
		o.mu.Unlock()
		return
	}
	o.mu.Unlock()
	callBack(w.copy(o.ended, o.err), f)
}

// Future returns the operation as a future of its output tensors. It corresponds to Work.get_future.
func (w *Work) Future() *cohort.Future[[]*tensor.Tensor] {
	o := &w.outcome
	failpoint.At("group.work.future")
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.future == nil {
		p := cohort.NewPromise[[]*tensor.Tensor]()
		o.mu.future = p.Future()
		if o.over.Load() {
			p.Complete(slices.Clone(w.call.Outputs), o.err)
		} else {
			o.mu.waiters.promise = p
		}
	}
	return o.mu.future
}

// FromFuture returns a Work that completes with future. It corresponds to Work::create_from_future. Its Wait takes any
// context; Abort does nothing, since the future belongs to its maker.
func FromFuture(future *cohort.Future[[]*tensor.Tensor]) *Work {
	if future == nil {
		return failed(OpUnknown, cohort.New("group: from future", cohort.InvalidArgument, "the future is nil"))
	}
	w := workOf(OpUnknown)
	w.outcome.begun = time.Now()
	w.outcome.mu.future = future
	future.OnDone(func(outputs []*tensor.Tensor, err error) {
		w.call.Outputs = outputs
		w.complete(err)
	})
	return w
}

// failed returns a Work that has ended with err without taking part in anything.
func failed(op OpType, err error) *Work {
	return workOf(op).complete(err)
}

// copy returns the operation as it is when it has ended at that time with err, for those who look at it afterwards.
func (w *Work) copy(at time.Time, err error) *Work {
	c := &Work{op: w.op, seq: w.seq}
	if err == nil {
		c.call.Outputs = slices.Clone(w.call.Outputs)
	}
	c.message.source = w.message.source
	c.outcome.begun, c.outcome.ended, c.outcome.err = w.outcome.begun, at, err
	c.outcome.over.Store(true)
	return c
}

// complete ends the operation now, and returns it.
func (w *Work) complete(err error) *Work {
	failpoint.At("group.complete")
	w.completeAt(time.Now(), err)
	return w
}

// completeAt ends the operation, once. It calls no user code, so the group's mutex may be held.
func (w *Work) completeAt(at time.Time, err error) {
	o := &w.outcome
	o.mu.Lock()
	if o.over.Load() {
		o.mu.Unlock()
		return
	}
	if err != nil {
		w.call.Outputs = nil
	}
	o.ended, o.err = at, err
	waiting := o.mu.waiters
	o.mu.waiters = waiters{done: waiting.done}
	var seen *Work
	if waiting.promise != nil || len(waiting.callbacks) > 0 {
		seen = w.copy(at, err)
	}
	o.over.Store(true)
	o.mu.Unlock()
	// From here on the Work is its owner's, who may use it for the next operation.
	if waiting.done != nil {
		close(waiting.done)
	}
	if seen != nil {
		waiting.notify(seen)
	}
}

// recycle makes a complete Work new again.
func (w *Work) recycle() {
	w.group = nil
	w.call.Reset()
	w.steps, w.submitted = steps{}, submission{}
	w.message.reset()
	w.item.Reset()
	w.outcome.reset()
}
