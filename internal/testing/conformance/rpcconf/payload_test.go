// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// payload is a kind of value that a test runs with: dense tensors, or sparse ones, coalesced or not.
type payload struct {
	*testing.T
	make func() any // the same value each time
}

// payloads runs a test with every kind of value. The sparse kinds are the counterparts of PyTorch's tests that end with
// _sparse.
func payloads(t *testing.T, test func(p payload)) {
	t.Helper()
	t.Run("dense", func(t *testing.T) { test(payload{t, func() any { return ones(2, 2) }}) })
	t.Run("sparse", func(t *testing.T) {
		t.Run("coalesced", func(t *testing.T) { test(payload{t, func() any { return sparse(true) }}) })
		t.Run("not coalesced", func(t *testing.T) { test(payload{t, func() any { return sparse(false) }}) })
	})
}

func ones(shape ...int) *tensor.Tensor { return filled(1, shape...) }

func filled(value float64, shape ...int) *tensor.Tensor {
	return tensor.Must(tensor.Full(tensor.Float32, value, shape...))
}

// sparse is the value of PyTorch's tests: 3, 4 and 5 in a matrix of two by three; not coalesced, one place is named twice.
func sparse(coalesced bool) *tensor.Sparse {
	where, what := []int64{0, 1, 1, 2, 0, 2}, []float32{3, 4, 5}
	if !coalesced {
		where, what = []int64{0, 1, 1, 1, 2, 0, 2, 2}, []float32{3, 4, 3, 2}
	}
	return &tensor.Sparse{
		Shape:   []int{2, 3},
		Indices: tensor.Must(tensor.From(where, 2, len(what))),
		Values:  tensor.Must(tensor.From(what)),
	}
}

// plain returns the elements of a dense or sparse float32 tensor, row by row.
func plain(v any) ([]float32, error) {
	switch v := v.(type) {
	case *tensor.Tensor:
		return tensor.Copy[float32](v)
	case *tensor.Sparse:
		where, err := tensor.Copy[int64](v.Indices)
		if err != nil {
			return nil, err
		}
		what, err := tensor.Copy[float32](v.Values)
		if err != nil {
			return nil, err
		}
		size, n := 1, len(what)
		for _, d := range v.Shape {
			size *= d
		}
		out := make([]float32, size)
		for i, x := range what {
			at := 0
			for d, length := range v.Shape {
				at = at*length + int(where[d*n+i])
			}
			out[at] += x
		}
		return out, nil
	}
	return nil, fmt.Errorf("a %T is not a tensor", v)
}

// layout says what kind of tensor it is, and of which shape.
func layout(v any) string {
	switch v := v.(type) {
	case *tensor.Tensor:
		return fmt.Sprint("dense tensor of ", v.Shape())
	case *tensor.Sparse:
		return fmt.Sprint("sparse tensor of ", v.Shape)
	}
	return fmt.Sprintf("%T", v)
}

// add is torch.add for both kinds of tensors. A sparse sum names the places of both, as PyTorch's does.
func add(a, b any) (any, error) {
	switch x := a.(type) {
	case *tensor.Tensor:
		p, err := plain(a)
		if err != nil {
			return nil, err
		}
		q, err := plain(b)
		if err != nil || len(p) != len(q) {
			return nil, rpc.Raise("ValueError", "cannot add %T and %T (%v)", a, b, err)
		}
		for i := range p {
			p[i] += q[i]
		}
		return tensor.From(p, x.Shape()...)
	case *tensor.Sparse:
		y, ok := b.(*tensor.Sparse)
		if !ok {
			return nil, rpc.Raise("TypeError", "cannot add %T and %T", a, b)
		}
		return addSparse(x, y)
	}
	return nil, rpc.Raise("TypeError", "cannot add %T and %T", a, b)
}

func addSparse(x, y *tensor.Sparse) (any, error) {
	n, m := x.Values.Numel(), y.Values.Numel()
	p, err := tensor.Copy[int64](x.Indices)
	if err != nil {
		return nil, err
	}
	q, err := tensor.Copy[int64](y.Indices)
	if err != nil {
		return nil, err
	}
	var where []int64
	for d := range x.Shape {
		where = append(append(where, p[d*n:(d+1)*n]...), q[d*m:(d+1)*m]...)
	}
	v, err := tensor.Copy[float32](x.Values)
	if err != nil {
		return nil, err
	}
	u, err := tensor.Copy[float32](y.Values)
	if err != nil {
		return nil, err
	}
	return &tensor.Sparse{
		Shape:   x.Shape,
		Indices: tensor.Must(tensor.From(where, len(x.Shape), n+m)),
		Values:  tensor.Must(tensor.From(append(v, u...))),
	}, nil
}

// scaled returns the payload's value n times as large: tests that make many calls at once tell them apart by it.
func (p payload) scaled(n int) any {
	switch v := p.make().(type) {
	case *tensor.Tensor:
		return tensor.Must(tensor.From(p.times(n), v.Shape()...))
	case *tensor.Sparse:
		values, err := tensor.Copy[float32](v.Values)
		if err != nil {
			panic(err)
		}
		for i := range values {
			values[i] *= float32(n)
		}
		v.Values = tensor.Must(tensor.From(values))
		return v
	default:
		panic(fmt.Sprintf("a %T", v))
	}
}

// times returns what the payload's value is when it was added n times.
func (p payload) times(n int) []float32 {
	values, err := plain(p.make())
	if err != nil {
		panic(err)
	}
	for i := range values {
		values[i] *= float32(n)
	}
	return values
}

// check compares a dense or sparse tensor with n times the payload: its kind, its shape and its elements.
func (p payload) check(got any, n int) error {
	values, err := plain(got)
	if err != nil {
		return err
	}
	if want := p.make(); layout(got) != layout(want) {
		return fmt.Errorf("got a %s, want a %s", layout(got), layout(want))
	}
	if want := p.times(n); fmt.Sprint(values) != fmt.Sprint(want) {
		return fmt.Errorf("got %v, want %v", values, want)
	}
	return nil
}
