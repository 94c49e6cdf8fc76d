// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package aten runs a few of torch's builtin operators on stacks of arguments as they arrive on the wire, for tools and
// tests that call torch operators on any worker. The arithmetic is that of package tmath; heavy work belongs in handlers.
//
// A request of a few bytes can ask for any amount of memory: the sizes of zeros, the broadcast of two vectors, an
// expanded tensor. So every allocation is reserved from a budget before it is made, and the steps of a matrix product are
// counted.
package aten

import (
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// opName is the operation that the errors of this package name.
const opName = "rpc: operator"

// DefaultBudget is what the operators of one worker may use at once, in bytes.
const DefaultBudget = 256 << 20

// maxSteps bounds the multiplications of one product.
const maxSteps = 1 << 31

// Names returns the names of all operators, in order.
func Names() []string { return slices.Sorted(maps.Keys(operators)) }

// Budget is the memory that all calls of a worker share.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of so many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes} }

// Run computes an operator by its name. Unknown ones are reported by known.
func (b *Budget) Run(name string, stack []any) (result any, known bool, err error) {
	op := operators[name]
	if op == nil {
		return nil, false, nil
	}
	c := &call{budget: b}
	defer c.end()
	result, err = op(c, stack)
	return result, true, err
}

// Reserve takes memory for a computation outside of this package. It is given back with release.
func (b *Budget) Reserve(bytes int64) (release func(), err error) {
	c := &call{budget: b}
	return c.end, c.take(bytes)
}

// call is one run of an operator and what it has reserved.
type call struct {
	budget   *Budget
	reserved int64
}

// take reserves memory before it is allocated.
func (c *call) take(n int64) error {
	if n > c.budget.limit {
		return tooLarge("%d bytes are needed, the operators of this worker may use %d", n, c.budget.limit)
	}
	if used := c.budget.used.Add(n); used > c.budget.limit {
		c.budget.used.Add(-n)
		return tooLarge("%d bytes are needed, of %d that the operators of this worker may use %d are taken", n, c.budget.limit, used-n)
	}
	c.reserved += n
	return nil
}

func (c *call) end() { c.budget.used.Add(-c.reserved) }

// tensor reserves the memory of a tensor.
func (c *call) tensor(dt tensor.DType, shape []int) error {
	n, ok := product(slices.Concat([]int{dt.Size()}, shape)...)
	if !ok {
		return tooLarge("a tensor of shape %v", shape)
	}
	return c.take(n)
}

// input reserves what tmath may make of an operand, repeated to a shape, to compute with it as dt: a dense copy, and one in
// the type that dt is computed in.
func (c *call) input(t *tensor.Tensor, dt tensor.DType, shape []int) error {
	if !t.IsContiguous() || !slices.Equal(shape, t.Shape()) {
		if err := c.tensor(t.DType(), shape); err != nil {
			return err
		}
	}
	if in := tensorops.ComputeType(dt); in != t.DType() {
		return c.tensor(in, shape)
	}
	return nil
}

// output reserves a result: in the type that dt is computed in, then in dt itself. Integers are computed in eight bytes,
// which is also enough where the result is float32.
func (c *call) output(dt tensor.DType, shape []int) error {
	in := tensorops.ComputeType(dt)
	if in != dt {
		if err := c.tensor(dt, shape); err != nil {
			return err
		}
	}
	return c.tensor(in, shape)
}

// work refuses a product that would take too long: a batch of n by k times k by m.
func (c *call) work(batch []int, n, k, m int) error {
	if steps, ok := product(slices.Concat(batch, []int{n, k, m})...); !ok || steps > maxSteps {
		return tooLarge("a product of %dx%d and %dx%d in a batch of %v takes more than %d multiplications", n, k, k, m, batch,
			int64(maxSteps))
	}
	return nil
}

// product multiplies sizes. It reports false when the result is not an int64.
func product(sizes ...int) (int64, bool) {
	out := uint64(1)
	for _, n := range sizes {
		high, low := bits.Mul64(out, uint64(n)) //nolint:gosec // sizes are not negative
		if n < 0 || high != 0 || low > math.MaxInt64 {
			return 0, slices.Contains(sizes, 0)
		}
		out = low
	}
	return int64(out), true
}

func tooLarge(format string, args ...any) error {
	return cohort.Newf(opName, cohort.Exhausted, format, args...)
}

func badOperand(format string, args ...any) error {
	return cohort.Newf(opName, cohort.InvalidArgument, format, args...)
}
