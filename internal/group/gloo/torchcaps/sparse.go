// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"fmt"

	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// MaxSparseDims is how many dimensions with indices a sparse tensor may have in an all_reduce, and how many without.
const MaxSparseDims = 4

// Sparse is what matters of a sparse tensor, beside its type.
type Sparse struct{ Indexed, Dense int } // dimensions with indices, and those of the values

// sparseSum is the part of the table for an all_reduce of a sparse tensor: an exchange of sizes, one of indices and one of values,
// with one tag for all. PyTorch finds out between them what it cannot do.
func (l Level) sparseSum(c *Call) outcome {
	dense := c.Sparse.Dense
	if c.DType.Complex() {
		if !addsComplex(c.Reduce) || l < V2_11 { // view_as_real, which all_reduce uses, takes sparse tensors from 2.11 on
			return refuse(InPython, "has no sparse tensors of complex numbers in all_reduce")
		}
		dense++ // pairs of real numbers
	}
	switch {
	case c.Reduce != reduce.Sum:
		return refuse(AtTheCall, "only sums sparse tensors")
	case c.Sparse.Indexed > MaxSparseDims || dense > MaxSparseDims:
		return refuse(AtTheWait, fmt.Sprintf("sums sparse tensors with at most %d dimensions with indices and %d without", MaxSparseDims, MaxSparseDims))
	}
	why := fmt.Sprintf("cannot sum sparse tensors of %v", c.DType)
	switch c.DType {
	case tensor.Float32, tensor.Float64, tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64:
		return outcome{}
	case tensor.Complex64, tensor.Complex128:
		return refuse(BeforeSum, "exchanges sparse complex numbers, and leaves the tensors as they were")
	case tensor.BFloat16:
		if l >= V2_6 {
			return outcome{}
		}
		return refuse(BeforeValues, why)
	case tensor.Float16:
		return refuse(BeforeSum, why)
	case tensor.Bool:
		if l >= V2_6 {
			return refuse(BeforeSum, why)
		}
		return refuse(BeforeValues, why)
	case tensor.Int16:
		return refuse(BeforeValues, why)
	default: // not even made coalesced
		return refuse(AtTheWait, why)
	}
}

// EmptyGathers reports whether ranks that gather nothing exchange empty messages, as gloo did before 2023.
func (p Peers) EmptyGathers() bool { return p.High == V1_13 }

// KnowsEmptyGathers reports whether EmptyGathers is the same for all that the peers may be.
func (p Peers) KnowsEmptyGathers() bool { return p.Low != V1_13 || p.High == V1_13 }
