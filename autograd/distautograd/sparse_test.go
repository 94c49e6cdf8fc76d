// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/tensor"
)

// What the result does not depend on gets zeros over the wire: a sparse tensor without values.
func TestSparseUnusedArguments(t *testing.T) {
	reg, _ := tensorHandlers(sparse)
	ws := newWorld(t, 2, reg.MustHandle("s.first", func(xs []*autograd.Variable) *autograd.Variable { return xs[0].Add(xs[0]) }))
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x, y := sparse.param(1), sparse.param(1)
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "s.first", []*autograd.Variable{x, y}).SparseSum(), opts...)
		same(t, "x", c.GradientValue(x), sparse.ones(2))
		zeros, err := y.Value().ZerosLike()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "y", c.GradientValue(y), zeros)
	})
}

func TestSparseManyPasses(t *testing.T) {
	reg, _ := tensorHandlers(sparse)
	ws := newWorld(t, 2, reg)
	ctx, c := ws[0].open(t)
	x, y := sparse.param(1), sparse.param(1)
	loss := call(ctx, t, ws[0], "w1", addSchema, x, y, 1).SparseSum()
	for range 1000 {
		backward(ctx, t, c, loss, distautograd.RetainGraph())
	}
	same(t, "x", c.GradientValue(x), sparse.ones(1000))
	same(t, "y", c.GradientValue(y), sparse.ones(1000))
}

// passed hands gradients on as they are, and keeps them.
type passed struct {
	failing
	grads []autograd.Value
	then  *tensor.Sparse // is returned instead, for all inputs
}

func (p *passed) ForwardValues(*autograd.Context, []autograd.Value) ([]autograd.Value, error) {
	return nil, errors.New("not called: all inputs are dense")
}

func (p *passed) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in[:1], nil
}

func (p *passed) BackwardValues(c *autograd.Context, grads []autograd.Value) ([]autograd.Value, error) {
	p.grads = append(p.grads, grads[0])
	if p.then != nil {
		return []autograd.Value{{Sparse: p.then}, {Sparse: p.then}}, nil
	}
	return grads, nil
}

// A sparse gradient is taken over without a copy, though others hold its parts, and further passes do not change what was handed
// over; that of two variables is none that the other one's sums change.
func TestSparseGradientsAreNotCopied(t *testing.T) {
	ws := newWorld(t, 1, basics())
	ids := autograd.Constant(tensor.Must(tensor.From([]int64{1, 2, 4, 5, 4, 3, 2, 9}, 8)))
	table := func() *autograd.Variable {
		return autograd.Parameter(tensor.Must(tensor.Full(tensor.Float32, 0.5, 10, 3)))
	}
	ctx, c := ws[0].open(t)
	a, p := table(), &passed{}
	out, err := autograd.Apply(p, a)
	if err != nil {
		t.Fatal(err)
	}
	loss := autograd.SparseEmbedding(out[0], ids, -1).Sum()
	backward(ctx, t, c, loss, distautograd.RetainGraph())
	first := p.grads[0].Sparse
	indices, values := first.Indices, first.Values
	if got := c.GradientValue(a).Sparse; got == nil || got.Values != values || got.Indices != indices {
		t.Error("the gradient was copied")
	}
	for range 10 {
		backward(ctx, t, c, loss, distautograd.RetainGraph())
	}
	sum, err := c.GradientValue(a).ToDense()
	if err != nil || !tensor.Equal(tensor.Must(sum.Select(0, 2)), tensor.Must(tensor.Full(tensor.Float32, 22.0, 3))) {
		t.Errorf("after eleven passes the gradient is %v, %v", sum, err)
	}
	if x, _ := tensor.Copy[float32](values); slices.ContainsFunc(x, func(v float32) bool { return v != 1 }) {
		t.Errorf("the first gradient was changed to %v", x)
	}

	ctx, c = ws[0].open(t)
	b := table()
	index := tensor.Must(tensor.Must(tensor.From([]int64{1}, 1, 1)).Expand(1, 8))
	value := tensor.Must(tensor.Must(tensor.From([]float32{1, 2, 3}, 1, 3)).Expand(8, 3))
	p = &passed{then: &tensor.Sparse{Shape: []int{10, 3}, Indices: index, Values: value}}
	if out, err = autograd.Apply(p, a, b); err != nil {
		t.Fatal(err)
	}
	loss = autograd.SparseEmbedding(out[0], ids, -1).Sum()
	backward(ctx, t, c, loss, distautograd.RetainGraph())
	for range 10 {
		backward(ctx, t, c, loss, distautograd.RetainGraph())
	}
	for _, v := range []*autograd.Variable{a, b} {
		sum, err := c.GradientValue(v).ToDense()
		if err != nil || !tensor.Equal(tensor.Must(sum.Select(0, 1)), tensor.Must(tensor.From([]float32{88, 176, 264}))) {
			t.Errorf("after eleven passes the gradient is %v, %v", sum, err)
		}
	}
	if x, _ := tensor.Copy[float32](value); !slices.Equal(x[:3], []float32{1, 2, 3}) {
		t.Errorf("the gradient that was handed over was changed to %v", x)
	}
}
