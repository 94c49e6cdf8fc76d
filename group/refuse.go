// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/tensor"
)

// whereRefused is where a PyTorch rank refuses an operation, in the order of [torch.Where]. It decides how this rank stays in step
// with it.
type whereRefused uint8

const (
	// inPython: before the process group hears of it. Nothing is taken.
	inPython whereRefused = iota
	// atTheCall: by the process group, at the call. No sequence number is taken, but a check of operations was made.
	atTheCall
	// atTheWait: by the worker thread. The sequence number is taken.
	atTheWait
	// performed: nowhere. The PyTorch ranks are on their way, so the group cannot go on.
	performed
)

// refusal is the error of an operation that this rank does not run because of the PyTorch ranks of its group.
type refusal struct {
	reason  *dist.Error
	where   whereRefused
	tags    uint32            // that it takes at the wait
	subject [2]*tensor.Tensor // what a check beforehand compares
}

func (r *refusal) Error() string { return r.reason.Error() }

// Unwrap makes the refusal what it says.
func (r *refusal) Unwrap() error { return r.reason }

func refusef(where whereRefused, name, format string, args ...any) error {
	return &refusal{reason: dist.Newf(name, dist.NotSupported, format, args...), where: where}
}

// about says which tensors a check of a refused operation compares.
func about(err error, ts ...*tensor.Tensor) error {
	if r, ok := errors.AsType[*refusal](err); ok {
		r.subject = [2]*tensor.Tensor{}
		copy(r.subject[:], ts)
	}
	return err
}

// refuse returns the Work of a collective that is not run. Where PyTorch's ranks refuse it too, this rank takes the sequence
// number that they take for it, and takes part in the check that they make before: all stay in step. Where they perform it,
// the group ends at once, with the reason, instead of having them wait for their timeout.
func (g *Group) refuse(ctx context.Context, op OpType, err error) *Work {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		return failed(op, err)
	}
	w := &Work{op: op, source: NoSource, refused: r, subject: r.subject}
	switch r.where {
	case performed:
		end := *r.reason
		end.Rank = dist.Rank(g.rank)
		end.Detail = "rank " + itoa(g.rank) + " cannot take part in what the PyTorch ranks perform, so the group ends: " + end.Detail
		g.fail(&end)
		w.complete(&end)
	case atTheWait, atTheCall:
		if g.checks != nil {
			return g.checked(ctx, w, r.numbers())
		}
		g.skip(r.numbers())
		w.complete(r.reason)
	case inPython:
		w.complete(r.reason)
	}
	return w
}

// numbers is how many sequence numbers the PyTorch ranks take for what they refuse.
func (r *refusal) numbers() uint32 {
	if r.where == atTheWait {
		return max(r.tags, 1)
	}
	return 0
}
