// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"slices"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// WithFactor is what [PremulSum] multiplies this rank's tensors by. Ranks may give different factors, as weights. It
// corresponds to the factor of torch.distributed's PREMUL_SUM.
func WithFactor(f float64) OpOption { return factorOption(f) }

type factorOption float64

func (factorOption) applyOp(*opConfig) {}

// premultiply makes a premultiplied sum a sum: it multiplies what goes in, in memory of its own where that is the caller's. It
// is called when the buffers of the operation are set.
func premultiply(name string, w *Work, op ReduceOp, dt tensor.DType, opts []OpOption) error {
	factor, given := factorOption(0), false
	for _, o := range opts {
		if f, ok := o.(factorOption); ok {
			factor, given = f, true
		}
	}
	switch {
	case op != PremulSum && !given:
		return nil
	case op != PremulSum:
		return dist.Newf(name, dist.InvalidArgument, "WithFactor is for PremulSum, not for %v", op)
	case !given:
		return dist.New(name, dist.InvalidArgument, "PremulSum needs a factor: give one with WithFactor")
	case !reduce.Scales(dt):
		return dist.Newf(name, dist.InvalidArgument, "premul_sum of %v is not defined: want floating-point or complex numbers", dt)
	}
	w.req.Op = reduce.Sum
	if w.req.Kind == coll.ReduceScatter {
		w.req.In = slices.Clone(w.req.In)
		reduce.Scale(w.req.In, dt, float64(factor))
		return nil
	}
	if w.finish == nil { // the buffer is the tensor's own
		own, t := slices.Clone(w.req.Out), w.outputs[0]
		w.req.Out, w.finish = own, func() error { return setBytes(t, own) }
	}
	reduce.Scale(w.req.Out, dt, float64(factor))
	return nil
}
