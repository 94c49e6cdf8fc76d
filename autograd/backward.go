// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"math"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// Backward computes the gradients of a variable of one element by all leaves that it depends on and adds them to
// [Variable.Grad] of those. ctx ends the pass between two functions. It corresponds to Tensor.backward.
func (v *Variable) Backward(ctx context.Context, opts ...Option) error {
	return Backward(ctx, []*Variable{v}, nil, opts...)
}

// Backward runs a pass from several roots. grads has a gradient for every root, dense or sparse. A root without one (the zero
// Value, or grads is nil) must have one element, and its gradient is 1. It corresponds to torch.autograd.backward.
func Backward(ctx context.Context, roots []*Variable, grads []Value, opts ...Option) error {
	return start(ctx, roots, grads, nil, opts)
}

// start delivers the gradients of roots and runs the pass. prepare may change the pass before it begins.
func start(ctx context.Context, roots []*Variable, grads []Value, prepare func(*Pass), opts []Option) error {
	const op = "autograd: backward"
	if len(roots) == 0 || grads != nil && len(grads) != len(roots) {
		return cohort.Newf(op, cohort.InvalidArgument, "%d roots with %d gradients", len(roots), len(grads))
	}
	var nodes []*Node
	byNode := map[*Node][]Value{}
	for i, v := range roots {
		if err := v.Err(); err != nil {
			return err
		}
		e := v.edge()
		if e.Node == nil {
			return cohort.Newf(op, cohort.InvalidArgument, "root %d of %d does not require grad and does not have a grad_fn", i, len(roots))
		}
		var g Value
		if grads != nil {
			g = grads[i]
		}
		g, err := rootGrad(v, g)
		if err != nil {
			return err
		}
		if byNode[e.Node] == nil {
			byNode[e.Node] = make([]Value, len(e.Node.outputs))
			nodes = append(nodes, e.Node)
		}
		if old := byNode[e.Node][e.Output]; !old.IsNone() {
			if g, err = AddValues(old, g); err != nil {
				return err
			}
		}
		byNode[e.Node][e.Output] = g
	}
	p := NewPass(nodes, opts...)
	if prepare != nil {
		prepare(p)
	}
	for _, n := range nodes {
		if err := p.Deliver(n, byNode[n]); err != nil {
			return err
		}
	}
	if err := p.Run(ctx); err != nil {
		return err
	}
	return p.Finish(ctx)
}

func rootGrad(v *Variable, g Value) (Value, error) {
	const op = "autograd: backward"
	switch {
	case g.IsNone() && product(v.Shape()) != 1:
		return g, cohort.Newf(op, cohort.InvalidArgument,
			"grad can be implicitly created only for scalar outputs, not for shape %v", v.Shape())
	case g.IsNone():
		one, err := tensor.Full(v.DType(), 1.0, v.Shape()...)
		return Value{Dense: one}, err
	case !metaOf(v.Value()).fits(g):
		return g, cohort.Newf(op, cohort.InvalidArgument, "mismatch: the gradient is %v%v, its root %v%v", g.DType(), g.Shape(),
			v.DType(), v.Shape())
	case g.Sparse != nil:
		if err := g.Sparse.Check(); err != nil {
			return g, cohort.Wrap(op, cohort.InvalidArgument, err)
		}
	}
	return g, nil
}

// Grad returns the gradients of outputs by inputs, which may be leaves or not, and leaves [Variable.Grad] alone. grads are
// the gradients of the outputs, as in [Backward]. A gradient is dense or sparse, and none for an input that the outputs do
// not depend on. It corresponds to torch.autograd.grad with allow_unused=True.
func Grad(ctx context.Context, outputs []*Variable, grads []Value, inputs []*Variable, opts ...Option) ([]Value, error) {
	captures := map[Edge]*slot{}
	edges := make([]Edge, len(inputs))
	for i, v := range inputs {
		if err := v.Err(); err != nil {
			return nil, err
		}
		if edges[i] = v.edge(); edges[i].Node == nil {
			return nil, cohort.Newf("autograd: grad", cohort.InvalidArgument, "input %d of %d does not require grad", i, len(inputs))
		}
		captures[edges[i]] = new(slot)
	}
	err := start(ctx, outputs, grads, func(p *Pass) {
		p.captures, p.needed = captures, neededFor(p, captures)
	}, opts)
	if err != nil {
		return nil, err
	}
	out := make([]Value, len(inputs))
	for i, e := range edges {
		if out[i], err = captures[e].grad.clone(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// neededFor marks the functions that have to run so that the captured places get their gradients: those with a path to
// one of them that is longer than nothing.
func neededFor(p *Pass, captures map[Edge]*slot) map[*Node]bool {
	targets := map[*Node]bool{}
	for e := range captures {
		targets[e.Node] = true
	}
	needed, seen := map[*Node]bool{}, map[*Node]bool{}
	type frame struct {
		n    *Node
		next int
	}
	for root := range p.roots {
		stack := []frame{{root, 0}}
		seen[root] = true
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			if f.next < len(f.n.edges) {
				to := f.n.edges[f.next].Node
				f.next++
				if to != nil && !seen[to] {
					seen[to] = true
					stack = append(stack, frame{to, 0})
				}
				continue
			}
			for _, e := range f.n.edges {
				if e.Node != nil && (needed[e.Node] || targets[e.Node]) {
					needed[f.n] = true
				}
			}
			stack = stack[:len(stack)-1]
		}
	}
	return needed
}

// GradCheck compares the gradients of f with finite differences at the given inputs, which are dense float64 tensors. f
// must return the same for the same inputs. Its result is multiplied by fixed weights, so that every element matters. An
// element may differ by atol + rtol times its size; 0 for both means 1e-5 and 1e-3. It corresponds to
// torch.autograd.gradcheck.
func GradCheck(ctx context.Context, f func(inputs []*Variable) *Variable, inputs []*tensor.Tensor, atol, rtol float64) error {
	const op, step = "autograd: grad check", 1e-6
	if atol == 0 && rtol == 0 {
		atol, rtol = 1e-5, 1e-3
	}
	leaves := make([]*Variable, len(inputs))
	values := make([][]float64, len(inputs))
	for i, t := range inputs {
		leaves[i] = Parameter(t)
		var err error
		if values[i], err = tensor.Data[float64](t); err != nil {
			return cohort.Wrap(op, cohort.InvalidArgument, err)
		}
	}
	loss := func(vs []*Variable) *Variable {
		y := f(vs)
		if y.Err() != nil {
			return y
		}
		weights := make([]float64, y.data.Numel())
		for i := range weights {
			weights[i] = math.Sin(float64(3*i + 1))
		}
		w, err := tensor.From(weights)
		if err != nil {
			return failed(err)
		}
		return y.Reshape(-1).Mul(Constant(w)).Sum()
	}
	if err := loss(leaves).Backward(ctx); err != nil {
		return err
	}
	constants := make([]*Variable, len(inputs))
	for i, t := range inputs {
		constants[i] = NoGrad(t)
	}
	for i, x := range values {
		var grad []float64
		if g := leaves[i].Grad(); g != nil {
			var err error
			if grad, err = tensor.Copy[float64](g); err != nil {
				return err
			}
		} else {
			grad = make([]float64, len(x))
		}
		for j, old := range x {
			x[j] = old + step
			up := loss(constants)
			x[j] = old - step
			down := loss(constants)
			x[j] = old
			if err := up.Err(); err != nil {
				return err
			}
			want := (up.Item() - down.Item()) / (2 * step)
			if math.Abs(want-grad[j]) <= atol+rtol*math.Abs(want) {
				continue
			}
			return cohort.Newf(op, cohort.Mismatch, "input %d element %d: the gradient is %v, finite differences give %v", i, j,
				grad[j], want)
		}
	}
	return nil
}
