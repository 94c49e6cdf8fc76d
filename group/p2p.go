// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// MaxTag is the largest tag of a point-to-point operation, as in PyTorch.
const MaxTag = 1<<31 - 1

// Send posts t to a rank of the group. Messages between two ranks with the same tag arrive in order. The Work is complete
// when t may be changed, which may be before the other side has received it.
//
// It corresponds to torch.distributed.isend.
func (g *Group) Send(ctx context.Context, t *tensor.Tensor, to cohort.Rank, tag int, opts ...OpOption) *Work {
	if g == nil {
		return refused(errNil)
	}
	w, buf, err := g.messageWork(OpSend, t, to, tag, opts)
	if err != nil {
		return failed(OpSend, err)
	}
	if buf == nil {
		c, err := t.Contiguous()
		if err != nil {
			return failed(OpSend, err)
		}
		if buf, err = c.Bytes(); err != nil {
			return failed(OpSend, err)
		}
	}
	w.message.Peer, w.message.Slot, w.message.Buf = int(to), uint64(tag), buf //nolint:gosec // checked
	return g.postMessage(ctx, w)
}

// Recv posts t as room for a message from a rank of the group. A shorter message leaves the rest of t unchanged; a longer
// one is an error.
//
// It corresponds to torch.distributed.irecv.
func (g *Group) Recv(ctx context.Context, t *tensor.Tensor, from cohort.Rank, tag int, opts ...OpOption) *Work {
	if g == nil {
		return refused(errNil)
	}
	return g.receive(ctx, OpRecv, t, from, tag, opts)
}

// RecvAny posts t as room for a message from the rank that sends one first; [Work.SourceRank] returns which.
//
// It corresponds to torch.distributed.irecv with src=None.
func (g *Group) RecvAny(ctx context.Context, t *tensor.Tensor, tag int, opts ...OpOption) *Work {
	if g == nil {
		return refused(errNil)
	}
	return g.receive(ctx, OpRecvAny, t, transport.AnyPeer, tag, opts)
}

func (g *Group) receive(ctx context.Context, op OpType, t *tensor.Tensor, from cohort.Rank, tag int, opts []OpOption) *Work {
	w, buf, err := g.messageWork(op, t, from, tag, opts)
	if err != nil {
		return failed(op, err)
	}
	if buf == nil {
		flat, err := t.Clone()
		if err != nil {
			return failed(op, err)
		}
		if buf, err = flat.Bytes(); err != nil {
			return failed(op, err)
		}
		w.call.Finish = func() error { return t.CopyFrom(flat) }
	}
	w.call.Outputs = append(w.call.Outputs[:0], t)
	w.message.Peer, w.message.Slot, w.message.Buf = int(from), uint64(tag), buf //nolint:gosec // checked
	if from == transport.AnyPeer {
		for r := range g.size {
			if r != int(g.rank) {
				w.message.From = append(w.message.From, r)
			}
		}
	}
	return g.postMessage(ctx, w)
}

// messageWork checks the arguments of a point-to-point operation. The buffer is nil when t is not contiguous.
func (g *Group) messageWork(op OpType, t *tensor.Tensor, peer cohort.Rank, tag int, opts []OpOption) (*Work, []byte, error) {
	name := "group: " + op.String()
	if err := g.args.CheckTensor(name, t); err != nil {
		return nil, nil, err
	}
	switch {
	case peer != transport.AnyPeer && (peer < 0 || int(peer) >= g.size):
		return nil, nil, cohort.Newf(name, cohort.InvalidArgument, "rank %d: the group has ranks 0 to %d", peer, g.size-1)
	case peer == g.rank:
		return nil, nil, cohort.Newf(name, cohort.InvalidArgument, "rank %d is this rank itself", peer)
	case tag < 0 || tag > MaxTag:
		return nil, nil, cohort.Newf(name, cohort.InvalidArgument, "tag %d: want 0 to %d", tag, MaxTag)
	case g.size == 1:
		return nil, nil, cohort.New(name, cohort.InvalidArgument, "the group has no other rank")
	}
	w := g.newWork(op, opts)
	w.call.Request.DType = t.DType()
	if !t.IsContiguous() {
		return w, nil, nil
	}
	buf, err := t.Bytes()
	if buf == nil {
		buf = []byte{}
	}
	return w, buf, err
}

// waitMessage waits for a point-to-point operation, driving the mesh.
func (g *Group) waitMessage(ctx context.Context, w *Work) error {
	failpoint.At("group.wait.message")
	err := g.mesh.Wait(ctx, &w.message.Op)
	if err != nil && !w.message.Completed() {
		if w.outcome.over.Load() {
			return w.outcome.err
		}
		if ctx.Err() != nil {
			return w.unfinished(ctx)
		}
		return err
	}
	g.reap(w)
	return w.await(ctx) // another goroutine may have found it complete first and be about to say so
}

// reap completes a message if the mesh has finished it.
func (g *Group) reap(w *Work) {
	if !w.message.Completed() {
		return
	}
	failpoint.At("group.reap")
	g.mu.Lock()
	mine, e := g.mu.sched.Settle(&w.item)
	g.performLocked(e)
	g.mu.Unlock()
	if mine {
		g.publish(g.settle(w, false))
	}
}

// reapAll completes all messages that the mesh has finished, or all of a group that is closed, and reports whether there were any.
func (g *Group) reapAll(closing bool) bool {
	failpoint.At("group.reap.all")
	g.mu.Lock()
	ready := g.takeLocked(closing)
	g.mu.Unlock()
	for _, w := range ready {
		g.publish(g.settle(w, closing))
	}
	return len(ready) > 0
}

// takeLocked takes messages that the mesh has finished, or all, from the scheduler: the caller settles them.
func (g *Group) takeLocked(all bool) (ready []*Work) {
	for _, it := range g.mu.sched.Messages() {
		if all || it.Owner.message.Completed() {
			ready = append(ready, it.Owner)
		}
	}
	return slices.DeleteFunc(ready, func(w *Work) bool {
		mine, e := g.mu.sched.Settle(&w.item)
		g.performLocked(e)
		return !mine
	})
}

// settle completes a point-to-point operation with what the mesh says about it.
func (g *Group) settle(w *Work, closing bool) *report {
	if closing && !w.message.Completed() {
		return g.ended(w, cohort.New("group: "+w.op.String(), cohort.Closed, "the group was closed"))
	}
	err := w.message.State.Err
	if cause := w.message.withdrawn.Load(); err != nil && cause != nil {
		err = cause
	} else if err != nil {
		err = g.formed.Blame(err)
	}
	if w.op != OpSend {
		w.message.source = cohort.Rank(w.message.Source)
	}
	if err == nil && w.call.Finish != nil {
		err = w.call.Finish()
	}
	return g.ended(w, err)
}

// abort is Work.Abort.
func (g *Group) abort(w *Work) {
	reason := cohort.New("group: "+w.op.String(), cohort.Aborted, "the operation was aborted on rank "+g.rank.String())
	if !w.op.p2p() {
		reason.Rank = g.rank
		g.fail(reason)
		return
	}
	if !w.message.withdraw(g.mesh, reason) {
		g.fail(reason)
	}
	g.reap(w)
}

// P2POp is a send or a receive of [Group.Batch]. It corresponds to torch.distributed.P2POp.
type P2POp struct {
	Op     OpType // OpSend or OpRecv
	Tensor *tensor.Tensor
	Peer   cohort.Rank
	Tag    int
}

// String says what is sent or received, without the elements of the tensor.
func (o P2POp) String() string {
	what, preposition := "no tensor", "to"
	if o.Tensor != nil {
		what = fmt.Sprint(o.Tensor.DType(), o.Tensor.Shape())
	}
	if o.Op == OpRecv {
		preposition = "from"
	}
	return fmt.Sprintf("%v %s %s rank %v, tag %d", o.Op, what, preposition, o.Peer, o.Tag)
}

// Batch posts several messages; a mistake in any of them posts none. It corresponds to torch.distributed.batch_isend_irecv.
func (g *Group) Batch(ctx context.Context, ops []P2POp, opts ...OpOption) []*Work {
	if g == nil {
		return []*Work{refused(errNil)}
	}
	works := make([]*Work, len(ops))
	for i, op := range ops {
		var err error
		if op.Op != OpSend && op.Op != OpRecv {
			err = cohort.Newf("group: batch", cohort.InvalidArgument, "operation %d is %v: a batch takes sends and receives", i, op.Op)
		} else {
			_, _, err = g.messageWork(op.Op, op.Tensor, op.Peer, op.Tag, nil)
		}
		if err != nil {
			for j := range works {
				works[j] = failed(ops[j].Op, err)
			}
			return works
		}
	}
	for i, op := range ops {
		if op.Op == OpSend {
			works[i] = g.Send(ctx, op.Tensor, op.Peer, op.Tag, opts...)
		} else {
			works[i] = g.Recv(ctx, op.Tensor, op.Peer, op.Tag, opts...)
		}
	}
	return works
}

// WaitAll waits until all operations or ctx have ended, and returns the first error. A nil among them is one.
func WaitAll(ctx context.Context, works ...*Work) error {
	var first error
	for i, w := range works {
		if w == nil {
			w = failed(OpUnknown, cohort.Newf("group: wait", cohort.InvalidArgument, "work %d of %d is nil", i, len(works)))
		}
		if err := w.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// message is what only a point-to-point operation has.
type message struct {
	transport.Op
	handed    atomic.Bool                  // the mesh has it
	withdrawn atomic.Pointer[cohort.Error] // why the group itself took it back
	source    cohort.Rank                  // who sent what was received
}

// reset makes it new, and keeps the channel that the mesh signals.
func (m *message) reset() {
	m.Op = transport.Op{State: transport.OpState{Done: m.State.Done}}
	m.handed.Store(false)
	m.withdrawn.Store(nil)
	m.source = cohort.NoRank
}

// hand gives it to the mesh.
func (m *message) hand(mesh transport.Mesh, op OpType) {
	if op == OpSend {
		mesh.Send(&m.Op)
	} else {
		mesh.Recv(&m.Op)
	}
	m.handed.Store(true)
}

// withdraw takes it back, with a reason. It cannot if the message is half way: its buffer is in use until the group fails.
func (m *message) withdraw(mesh transport.Mesh, reason *cohort.Error) bool {
	m.withdrawn.Store(reason)
	return mesh.Cancel(&m.Op) || m.Completed()
}
