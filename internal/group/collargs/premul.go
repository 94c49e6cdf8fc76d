// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collargs

import (
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

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
	if c.Request.Kind == collective.ReduceScatter {
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
