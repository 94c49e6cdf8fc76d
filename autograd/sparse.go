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

// SparseConstant returns a variable over a sparse tensor that no gradients are wanted for. Sparse variables can be added,
// subtracted, multiplied, stacked, scaled, negated and converted; see also [Variable.SparseSum] and [Variable.ToDense]. They are
// not broadcast. Other operations refuse them.
func SparseConstant(s *tensor.Sparse) *Variable {
	const op = "autograd: constant"
	if s == nil {
		return failed(cohort.New(op, cohort.InvalidArgument, "no tensor"))
	}
	if err := s.Check(); err != nil {
		return failed(cohort.Wrap(op, cohort.InvalidArgument, err))
	}
	return &Variable{sparse: s}
}

// SparseParameter returns a leaf over a sparse tensor that gradients are wanted for. It corresponds to
// torch.sparse_coo_tensor with requires_grad=True.
func SparseParameter(s *tensor.Sparse) *Variable {
	v := SparseConstant(s)
	if v.err == nil && (!v.DType().Floating() || !tensorops.Computes(v.DType())) {
		return failed(cohort.Newf("autograd: parameter", cohort.InvalidArgument,
			"only floating point tensors can require gradients, not %v", v.DType()))
	}
	v.requires = v.err == nil
	return v
}

func oneSparse(s *tensor.Sparse, err error) ([]Value, error) {
	if err != nil {
		return nil, err
	}
	return []Value{{Sparse: s}}, nil
}

// scaled returns a value times a number.
func (v Value) scaled(by float64) (out Value, err error) {
	if v.Sparse == nil {
		out.Dense, err = times(v.Dense, by)
		return out, err
	}
	out.Sparse, err = sparseops.Map(v.Sparse, func(t *tensor.Tensor) (*tensor.Tensor, error) { return times(t, by) })
	return out, err
}

func (v Value) negated() (out Value, err error) {
	neg := func(t *tensor.Tensor) (*tensor.Tensor, error) { return tensorops.Unary(tensorops.Neg, t) }
	if v.Sparse == nil {
		out.Dense, err = neg(v.Dense)
		return out, err
	}
	out.Sparse, err = sparseops.Map(v.Sparse, neg)
	return out, err
}

// multiplied returns the product of two values, which is sparse when one of them is.
func (v Value) multiplied(w Value) (out Value, err error) {
	switch {
	case v.Sparse != nil && w.Sparse != nil:
		out.Sparse, err = sparseops.Mul(v.Sparse, w.Sparse)
	case v.Sparse != nil:
		out.Sparse, err = sparseops.MulDense(v.Sparse, w.Dense)
	case w.Sparse != nil:
		out.Sparse, err = sparseops.MulDense(w.Sparse, v.Dense)
	default:
		out.Dense, err = binary(tensorops.Mul, v.Dense, w.Dense)
	}
	return out, err
}

// ForwardValues adds two sparse tensors, or a sparse one to a dense one.
func (f *addSub) ForwardValues(_ *Context, in []Value) ([]Value, error) {
	a, b := in[0], in[1]
	if a.Sparse != nil && b.Sparse == nil {
		return nil, cohort.New("sparse", cohort.NotSupported,
			"a dense tensor cannot be added to a sparse one, as in PyTorch: put the dense one first")
	}
	if f.sign < 0 {
		var err error
		if b, err = b.negated(); err != nil {
			return nil, err
		}
	}
	if a.Sparse != nil {
		return oneSparse(sparseops.Add(a.Sparse, b.Sparse))
	}
	dt := tensorops.ResultType(tensorops.Of(a.Dense), tensorops.Of(b.Sparse.Values))
	sum, err := tensorops.Convert(a.Dense, dt)
	if err != nil {
		return nil, err
	}
	other, err := b.convert(dt)
	if err != nil {
		return nil, err
	}
	out, err := Value{Dense: sum}.plus(other, sum != a.Dense)
	return []Value{out}, err
}

// BackwardValues returns the gradient itself for both.
func (f *addSub) BackwardValues(c *Context, g []Value) ([]Value, error) {
	out := []Value{g[0], g[0]}
	if f.sign < 0 && c.NeedsGrad(1) {
		var err error
		if out[1], err = g[0].negated(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ForwardValues multiplies, a sparse tensor with a sparse or dense one.
func (f *mul) ForwardValues(c *Context, in []Value) ([]Value, error) {
	c.SaveValues(in...)
	out, err := in[0].multiplied(in[1])
	return []Value{out}, err
}

func (f *mul) BackwardValues(c *Context, g []Value) ([]Value, error) {
	in := c.SavedValues()
	if in == nil { // of dense tensors
		in = values(c.Saved())
	}
	out := make([]Value, 2)
	for i := range out {
		if !c.NeedsGrad(i) {
			continue
		}
		var err error
		if out[i], err = g[0].multiplied(in[1-i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ForwardValues scales; a sparse tensor cannot be shifted.
func (f *linearMap) ForwardValues(_ *Context, in []Value) ([]Value, error) {
	if f.name == "shift" {
		return nil, cohort.New("sparse", cohort.NotSupported, "a number cannot be added to a sparse tensor: use ToDense")
	}
	out, err := in[0].scaled(f.factor)
	return []Value{out}, err
}

func (f *linearMap) BackwardValues(_ *Context, g []Value) ([]Value, error) {
	if f.factor == 1 {
		return g, nil
	}
	out, err := g[0].scaled(f.factor)
	return []Value{out}, err
}

// ForwardValues refuses sparse tensors.
func (f *elementwise) ForwardValues(*Context, []Value) ([]Value, error) { return nil, denseOnly() }

// BackwardValues has a sparse gradient: the derivative is only needed where that has values.
func (f *elementwise) BackwardValues(c *Context, g []Value) ([]Value, error) {
	s, err := sparseops.Coalesce(g[0].Sparse)
	if err != nil {
		return nil, err
	}
	at, err := sparseops.Take(c.Saved()[0], s)
	if err != nil {
		return nil, err
	}
	return oneSparse(sparseops.Map(s, func(values *tensor.Tensor) (*tensor.Tensor, error) {
		return tensorops.Map2(f.op.Name, values, at.Values, f.slope)
	}))
}

func (f *convert) ForwardValues(_ *Context, in []Value) ([]Value, error) {
	return oneSparse(sparseops.Convert(in[0].Sparse, f.to))
}

// BackwardValues leaves the conversion to the engine.
func (f *convert) BackwardValues(_ *Context, g []Value) ([]Value, error) { return g, nil }

// SparseSum is the sum of all elements of a sparse variable, as a dense scalar. Its gradient is sparse and has the indices of the
// variable. It corresponds to torch.sparse.sum.
func (v *Variable) SparseSum() *Variable { return apply(&sparseSum{}, v) }

type sparseSum struct{ onlySparse }

func (f *sparseSum) Name() string { return "sparse sum" }
func (f *sparseSum) fresh()       {}

func (f *sparseSum) ForwardValues(c *Context, in []Value) ([]Value, error) {
	s, err := sparseops.Coalesce(in[0].Sparse)
	if err != nil {
		return nil, err
	}
	c.SaveValues(Value{Sparse: s})
	sum, err := sparseops.Sum(s)
	return []Value{{Dense: sum}}, err
}

func (f *sparseSum) BackwardValues(c *Context, g []Value) ([]Value, error) {
	t, err := g[0].ToDense()
	if err != nil {
		return nil, err
	}
	return oneSparse(sparseops.Map(c.SavedValues()[0].Sparse, func(like *tensor.Tensor) (*tensor.Tensor, error) {
		whole, err := t.Expand(like.Shape()...)
		if err != nil {
			return nil, err
		}
		return whole.Clone()
	}))
}

// ToDense returns a sparse variable in dense form; a dense one is returned as it is. The gradient has the indices of the sparse
// one. It corresponds to Tensor.to_dense.
func (v *Variable) ToDense() *Variable {
	if v.err != nil || v.sparse == nil {
		return v
	}
	return apply(&toDense{}, v)
}

type toDense struct{ onlySparse }

func (f *toDense) Name() string { return "to dense" }
func (f *toDense) fresh()       {}

func (f *toDense) ForwardValues(c *Context, in []Value) ([]Value, error) {
	s, err := sparseops.Coalesce(in[0].Sparse)
	if err != nil {
		return nil, err
	}
	c.SaveValues(Value{Sparse: s})
	t, err := sparseops.Dense(s)
	return []Value{{Dense: t}}, err
}

func (f *toDense) BackwardValues(c *Context, g []Value) ([]Value, error) {
	t, err := g[0].ToDense()
	if err != nil {
		return nil, err
	}
	return oneSparse(sparseops.Take(t, c.SavedValues()[0].Sparse))
}

// onlySparse is the dense part of functions that have none.
type onlySparse struct{}

func (onlySparse) Forward(*Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, cohort.New("sparse", cohort.InvalidArgument, "the variable is dense, and the function takes a sparse one")
}

func (onlySparse) Backward(*Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, cohort.New("sparse", cohort.Internal, "a function of sparse tensors that got dense ones")
}

// Stack joins variables of one shape along a new dimension. They are all dense or all sparse. It corresponds to torch.stack.
func Stack(dim int, vs ...*Variable) *Variable {
	if len(vs) == 0 || !slices.ContainsFunc(vs, func(v *Variable) bool { return v != nil && v.sparse != nil }) {
		return stackDense(dim, vs)
	}
	return apply(&stack{dim: dim}, vs...)
}

func stackDense(dim int, vs []*Variable) *Variable {
	parts := make([]*Variable, len(vs))
	for i, v := range vs {
		if err := v.Err(); err != nil {
			return failed(err)
		}
		shape := v.Shape()
		if !slices.Equal(shape, vs[0].Shape()) {
			return failed(cohort.Newf("autograd: stack", cohort.InvalidArgument,
				"stack expects each tensor to be equal size, but got %v at entry 0 and %v at entry %d", vs[0].Shape(), shape, i))
		}
		at, err := tensorops.Axis("stack", dim, len(shape)+1)
		if err != nil {
			return failed(withOp("autograd: stack", err))
		}
		parts[i] = v.Reshape(slices.Insert(shape, at, 1)...)
		dim = at
	}
	return Cat(dim, parts...)
}

type stack struct {
	onlySparse

	dim int
	n   int
}

func (f *stack) ForwardValues(_ *Context, in []Value) ([]Value, error) {
	ss := make([]*tensor.Sparse, len(in))
	for i, v := range in {
		if v.Sparse == nil {
			return nil, cohort.Newf("sparse", cohort.NotSupported, "input %d is dense, others are sparse", i)
		}
		ss[i] = v.Sparse
	}
	var err error
	if f.dim, err = tensorops.Axis("stack", f.dim, len(ss[0].Shape)+1); err != nil {
		return nil, err
	}
	f.n = len(ss)
	return oneSparse(sparseops.Stack(f.dim, ss...))
}

func (f *stack) BackwardValues(c *Context, g []Value) ([]Value, error) {
	out := make([]Value, f.n)
	for i := range out {
		if !c.NeedsGrad(i) {
			continue
		}
		var err error
		if s := g[0].Sparse; s != nil {
			out[i].Sparse, err = sparseops.Select(s, f.dim, i)
		} else {
			out[i].Dense, err = g[0].Dense.Select(f.dim, i)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
