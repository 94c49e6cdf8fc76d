// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package collargs turns the arguments of a collective, tensors and options, into the request that an engine runs, and says what
// to do with its result. It refuses what does not fit, what no rank can do, and what the PyTorch ranks of the group cannot do or
// may do otherwise; a refusal of the last kind says how this rank stays in step with them. Nothing here sends, and only Narrow may wait.
package collargs

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/tensor"
)

// Group is what a request depends on beside its arguments.
type Group struct {
	Rank    cohort.Rank
	Size    int
	Peers   torchcaps.Peers                 // what the PyTorch ranks can do
	Narrow  func() (torchcaps.Peers, error) // asks again what they can do, before a call is refused because that is not known; or nil
	Detail  bool                            // shapes of flat buffers are compared too
	Checked bool                            // PyTorch ranks compare operations before they run
}

// Call is a collective that is ready to run. A zero Call, or one that was [Call.Reset], can be filled.
type Call struct {
	Factor  Factor // of a premultiplied sum; set before the Call is filled
	Request collective.Request
	Outputs []*tensor.Tensor
	Finish  func() error      // after success: moves results to where the user wants them; or nil
	Subject [2]*tensor.Tensor // what a check before the operation compares
	Parts   int               // collectives that PyTorch ranks count for it; 0 for the usual one
	Sparse  *tensor.Sparse    // the subject of a [sparseSum], instead
	Pieces  []piece           // what to run one after the other instead of the request as a whole
}

// piece is one of several collectives that an operation consists of for PyTorch ranks. Each has a tag of its own.
type piece struct{ In, Out []byte }

// Reset empties the Call, and keeps its memory.
func (c *Call) Reset() { *c = Call{Outputs: c.Outputs[:0]} }

// Numbers is how many sequence numbers the operation takes.
func (c *Call) Numbers() uint32 { return uint32(max(c.Parts, 1)) } //nolint:gosec // a number of ranks or tensors

// TorchSteps is how far an operation moves the count that PyTorch 2.x puts into fingerprints. One that is made of steps and is no
// collective, a monitored barrier, counts the messages it consists of.
func (g *Group) TorchSteps(c *Call, steps bool) uint64 {
	switch {
	case c.Parts > 1:
		return uint64(c.Parts)
	case !steps, c.Parts == 1:
		return 1
	case g.Rank == 0:
		return 2 * uint64(g.Size-1) //nolint:gosec // at least one rank
	default:
		return 2
	}
}

// elements says of what type the elements of the buffers are, and whether they are the parts of complex numbers: Go ranks among
// themselves exchange complex numbers as such.
func (g *Group) elements(c *Call, dt tensor.DType) {
	c.Request.DType = g.wireType(dt)
	c.Request.Complex = dt.Complex() && c.Request.DType != dt
}

// wireType is the element type that the PyTorch ranks see: booleans are bytes to gloo, complex numbers pairs.
func (g *Group) wireType(dt tensor.DType) tensor.DType {
	if g.Peers.None() {
		return dt
	}
	if dt == tensor.Bool {
		return tensor.Uint8
	}
	return parts(dt)
}
