// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"errors"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// DebugVariable is PyTorch's variable that makes ranks compare operations before they run them.
const DebugVariable = "TORCH_DISTRIBUTED_DEBUG"

// Refusal is the error of an operation that this rank does not run, or not to its end, because of the other ranks of its group. Where
// they refuse it too, all are in step afterwards.
type Refusal struct { //nolint:errname // it reads as what happened
	Reason  *cohort.Error
	Where   torchcaps.Where   // they refuse it
	Tags    uint32            // that it takes at the wait
	Subject [2]*tensor.Tensor // what a check beforehand compares
	Sparse  *tensor.Sparse    // or this
}

func (r *Refusal) Error() string { return r.Reason.Error() }

// Unwrap makes the refusal what it says.
func (r *Refusal) Unwrap() error { return r.Reason }

// Numbers is how many sequence numbers the PyTorch ranks take for what they refuse.
func (r *Refusal) Numbers() uint32 {
	if r.Where == torchcaps.AtTheWait || r.Where == torchcaps.BeforeValues || r.Where == torchcaps.BeforeSum {
		return max(r.Tags, 1)
	}
	return 0
}

func refusef(where torchcaps.Where, name, format string, args ...any) error {
	return &Refusal{Reason: cohort.Newf(name, cohort.NotSupported, format, args...), Where: where}
}

// about says which tensors a check of a refused operation compares.
func about(err error, ts ...*tensor.Tensor) error {
	if r, ok := errors.AsType[*Refusal](err); ok {
		r.Subject = [2]*tensor.Tensor{}
		copy(r.Subject[:], ts)
	}
	return err
}

// checkTorch refuses what the PyTorch ranks of the group cannot do, would get wrong, or may do one way or another.
func (g *Group) checkTorch(name string, op torchcaps.Op, dt tensor.DType, r reduce.Op, numel, parts int) error {
	call := torchcaps.Call{Op: op, DType: dt, Reduce: r, Numel: numel, Parts: parts}
	err := g.Peers.Check(name, call)
	if why, ok := errors.AsType[*torchcaps.Refusal](err); ok && why.Where == torchcaps.Nowhere && g.Narrow != nil {
		peers, failure := g.Narrow()
		if failure != nil {
			return failure
		}
		err = peers.Check(name, call)
	}
	return refusal(err)
}

// refusal is what the table says as a [Refusal].
func refusal(err error) error {
	why, ok := errors.AsType[*torchcaps.Refusal](err)
	if !ok {
		return err
	}
	e, _ := errors.AsType[*cohort.Error](err)
	e.Err = nil
	return &Refusal{Reason: e, Where: why.Where, Tags: uint32(why.Tags)} //nolint:gosec // a number of ranks at most
}

// uneven refuses blocks of different sizes. PyTorch's ranks refuse them too, each that sees them: in a gather and a scatter
// that is the root alone, and the others are on their way.
func (g *Group) uneven(name string, op torchcaps.Op) error {
	if g.Peers.None() {
		return nil
	}
	where := torchcaps.AtTheCall
	if op != torchcaps.AllGather {
		where = torchcaps.Nowhere
	}
	return refusef(where, name, "gloo of %v, which other ranks use, needs tensors of one size", g.Peers)
}

// uneven refuses blocks of different sizes in a gather or scatter that was not said to have them: the other ranks, which do not
// know the sizes, go by that.
func (c *Call) uneven(g *Group, name string, op torchcaps.Op, counts []int) error {
	if err := g.uneven(name, op); err != nil || c.Request.Uneven {
		return err
	}
	return cohort.Newf(name, cohort.InvalidArgument,
		"the tensors of the ranks differ in size (%d bytes): give the option Uneven on all ranks", counts)
}

// Factor is what a premultiplied sum multiplies this rank's tensors by.
type Factor struct {
	Value float64
	Given bool
}

// premultiply makes a premultiplied sum a sum: it multiplies what goes in, in memory of its own where that is the caller's. It
// is called when the buffers of the operation are set.
func premultiply(name string, c *Call, op reduce.Op, dt tensor.DType) error {
	switch {
	case op != reduce.PremulSum && !c.Factor.Given:
		return nil
	case op != reduce.PremulSum:
		return cohort.Newf(name, cohort.InvalidArgument, "WithFactor is for PremulSum, not for %v", op)
	case !c.Factor.Given:
		return cohort.New(name, cohort.InvalidArgument, "PremulSum needs a factor: give one with WithFactor")
	case !reduce.Scales(dt):
		return cohort.Newf(name, cohort.InvalidArgument, "premul_sum of %v is not defined: want floating-point or complex numbers", dt)
	}
	c.Request.Op = reduce.Sum
	if c.Request.Kind == ReduceScatter {
		c.Request.In = slices.Clone(c.Request.In)
		reduce.Scale(c.Request.In, dt, c.Factor.Value)
		return nil
	}
	if c.Finish == nil { // the buffer is the tensor's own
		own, t := slices.Clone(c.Request.Out), c.Outputs[0]
		c.Request.Out, c.Finish = own, func() error { return setBytes(t, own) }
	}
	reduce.Scale(c.Request.Out, dt, c.Factor.Value)
	return nil
}
