// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// Value is what a [Variable] or a gradient consists of: a dense tensor, a sparse one, or none (the zero Value). A gradient is
// dense or sparse whatever its variable is, as in PyTorch: that of a dense table of embeddings may be sparse.
type Value struct {
	Dense  *tensor.Tensor
	Sparse *tensor.Sparse
}

// IsNone reports whether the value has no tensor.
func (v Value) IsNone() bool { return v.Dense == nil && v.Sparse == nil }

// Shape returns the size of every dimension, or nil without a tensor; the caller may keep it.
func (v Value) Shape() []int {
	switch {
	case v.Dense != nil:
		return v.Dense.Shape()
	case v.Sparse != nil:
		return slices.Clone(v.Sparse.Shape)
	}
	return nil
}

// DType returns the element type; float32 without a tensor.
func (v Value) DType() tensor.DType {
	switch {
	case v.Dense != nil:
		return v.Dense.DType()
	case v.Sparse != nil:
		return v.Sparse.Values.DType()
	}
	return tensor.Float32
}

// ToDense returns the tensor in dense form, or nil when there is none.
func (v Value) ToDense() (*tensor.Tensor, error) {
	if v.Sparse != nil {
		return sparseops.Dense(v.Sparse)
	}
	return v.Dense, nil
}

// String is the text of the tensor.
func (v Value) String() string {
	switch {
	case v.Dense != nil:
		return v.Dense.String()
	case v.Sparse != nil:
		return v.Sparse.String()
	}
	return "none"
}

// ZerosLike returns zeros of the same shape and type: a sparse tensor without indices if v is sparse.
func (v Value) ZerosLike() (Value, error) { return metaOf(v).zeros() }

func (v Value) clone() (out Value, err error) {
	switch {
	case v.Dense != nil:
		out.Dense, err = v.Dense.Clone()
	case v.Sparse != nil:
		out.Sparse, err = sparseops.Clone(v.Sparse)
	}
	return out, err
}

func (v Value) convert(dt tensor.DType) (out Value, err error) {
	if v.Sparse != nil {
		out.Sparse, err = sparseops.Convert(v.Sparse, dt)
	} else {
		out.Dense, err = tensorops.Convert(v.Dense, dt)
	}
	return out, err
}

// plus is [AddValues], with the sum in place of v when that is dense and owned.
func (v Value) plus(w Value, owned bool) (Value, error) {
	switch {
	case v.Sparse != nil && w.Sparse != nil:
		sum, err := sparseops.Add(v.Sparse, w.Sparse)
		return Value{Sparse: sum}, err
	case v.Sparse != nil:
		sum, err := w.Dense.Clone()
		if err == nil {
			err = sparseops.AddInto(sum, v.Sparse)
		}
		return Value{Dense: sum}, err
	case w.Sparse != nil:
		sum := v.Dense
		if !owned || !sum.IsContiguous() {
			var err error
			if sum, err = sum.Clone(); err != nil {
				return v, err
			}
		}
		return Value{Dense: sum}, sparseops.AddInto(sum, w.Sparse)
	case owned && v.Dense.IsContiguous():
		return v, tensorops.AddInto(v.Dense, w.Dense)
	}
	sum, err := binary(tensorops.Add, v.Dense, w.Dense)
	return Value{Dense: sum}, err
}

// AddValues returns the sum of two gradients of the same shape and type, as PyTorch accumulates them: two sparse ones make a
// sparse one, and if one is dense so is the sum. Neither is changed.
func AddValues(v, w Value) (Value, error) { return v.plus(w, false) }

// ValueFunction is a [Function] that can also compute with sparse tensors. [Apply] and passes call Forward and Backward where
// all tensors are dense. Other functions take no sparse inputs, and get sparse gradients in dense form. PyTorch has no such choice: a
// custom function gets them as they are, and most of its own functions refuse them.
type ValueFunction interface {
	Function
	// ForwardValues is Forward with at least one sparse input.
	ForwardValues(c *Context, inputs []Value) ([]Value, error)
	// BackwardValues is Backward with at least one sparse input, output or gradient.
	BackwardValues(c *Context, grads []Value) ([]Value, error)
}

// meta is what the engine checks gradients against.
type meta struct {
	shape  []int
	dtype  tensor.DType
	sparse bool
	dims   int // of a sparse tensor: those with indices
}

func metaOf(v Value) meta {
	m := meta{shape: v.Shape(), dtype: v.DType(), sparse: v.Sparse != nil}
	if m.sparse {
		m.dims = sparseops.SparseDims(v.Sparse)
	}
	return m
}

func (m meta) fits(v Value) bool {
	return v.DType() == m.dtype && slices.Equal(v.Shape(), m.shape)
}

// zeros is the gradient of an output that nothing depends on.
func (m meta) zeros() (v Value, err error) {
	if m.sparse {
		v.Sparse, err = sparseops.Empty(m.dtype, m.shape, m.dims)
	} else {
		v.Dense, err = tensor.New(m.dtype, m.shape...)
	}
	return v, err
}

// fit makes a gradient match what it belongs to, as PyTorch's engine does: it is summed over dimensions that were
// broadcast, and converted. Whether it is sparse does not matter.
func (m meta) fit(grad Value) (fitted Value, changed bool, err error) {
	if m.fits(grad) {
		return grad, false, nil
	}
	switch {
	case slices.Equal(grad.Shape(), m.shape):
	case grad.Sparse != nil: // of any size, so it is not made dense
		if grad.Sparse, grad.Dense, err = sparseops.SumTo(grad.Sparse, m.shape); err != nil {
			return Value{}, false, err
		}
	default:
		common, failed := tensorops.BroadcastShape("backward", m.shape, grad.Shape())
		if failed != nil || !slices.Equal(common, grad.Shape()) {
			return Value{}, false, cohort.Newf("autograd: backward", cohort.InvalidArgument,
				"a gradient has shape %v, but its variable %v", grad.Shape(), m.shape)
		}
		if grad.Dense, err = tensorops.SumTo(grad.Dense, m.shape); err != nil {
			return Value{}, false, err
		}
	}
	grad, err = grad.convert(m.dtype)
	return grad, true, err
}

// values and denses translate between lists of both kinds.
func values(ts []*tensor.Tensor) []Value {
	vs := make([]Value, len(ts))
	for i, t := range ts {
		vs[i].Dense = t
	}
	return vs
}

func denses(vs []Value) ([]*tensor.Tensor, error) {
	ts := make([]*tensor.Tensor, len(vs))
	for i, v := range vs {
		var err error
		if ts[i], err = v.ToDense(); err != nil {
			return nil, err
		}
	}
	return ts, nil
}

func anySparse(vs []Value) bool {
	return slices.ContainsFunc(vs, func(v Value) bool { return v.Sparse != nil })
}
