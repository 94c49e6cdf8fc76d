// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sparseops_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

func sparse(shape []int, dims int, indices []int64, values []float64) *tensor.Sparse {
	n := len(indices) / dims
	return &tensor.Sparse{
		Shape: shape, Indices: tensor.Must(tensor.From(indices, dims, n)),
		Values: tensor.Must(tensor.From(values, append([]int{n}, shape[dims:]...)...)),
	}
}

// random has duplicates, no order, and whole numbers as values, whose sums are exact.
func random(r *rand.Rand, shape []int, dims int) *tensor.Sparse {
	n := r.IntN(8)
	var indices []int64
	for _, size := range shape[:dims] {
		for range n {
			indices = append(indices, r.Int64N(int64(size)))
		}
	}
	width := n
	for _, size := range shape[dims:] {
		width *= size
	}
	values := make([]float64, width)
	for i := range values {
		values[i] = float64(r.IntN(19) - 9)
	}
	return sparse(shape, dims, indices, values)
}

func must[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// isCoalesced reports whether every index occurs once, in order.
func isCoalesced(t *testing.T, s *tensor.Sparse) bool {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	index := must[[]int64](t)(tensor.Copy[int64](s.Indices))
	n := s.Indices.Dim(1)
	for i := 1; i < n; i++ {
		var before, here []int64
		for d := range s.Indices.Dim(0) {
			before, here = append(before, index[d*n+i-1]), append(here, index[d*n+i])
		}
		if slices.Compare(before, here) >= 0 {
			return false
		}
	}
	return true
}

// TestAgainstDense: every operation computes what it does on the same tensors in dense form.
func TestAgainstDense(t *testing.T) {
	t.Parallel()
	sp, de := must[*tensor.Sparse](t), must[*tensor.Tensor](t)
	r := rand.New(rand.NewPCG(7, 7))
	for range 500 {
		shape := []int{1 + r.IntN(3), 1 + r.IntN(4), 1 + r.IntN(3)}
		dims := 1 + r.IntN(3)
		a, b := random(r, shape, dims), random(r, shape, dims)
		x, y := de(sparseops.Dense(a)), de(sparseops.Dense(b))
		same := func(name string, got *tensor.Sparse, want *tensor.Tensor) {
			t.Helper()
			if !tensor.Equal(de(sparseops.Dense(got)), want) {
				t.Fatalf("%s of %v and %v is %v, want %v", name, a, b, got, want)
			}
			if !isCoalesced(t, got) {
				t.Fatalf("%s is not coalesced: %v", name, got)
			}
		}
		same("coalesce", sp(sparseops.Coalesce(a)), x)
		sum := de(tensorops.Binary(tensorops.Add, tensorops.Of(x), tensorops.Of(y)))
		if got := sp(sparseops.Add(a, b)); !tensor.Equal(de(sparseops.Dense(got)), sum) {
			t.Fatalf("%v plus %v is %v, want %v", a, b, got, sum)
		}
		same("add coalesced", sp(sparseops.Add(sp(sparseops.Coalesce(a)), sp(sparseops.Coalesce(b)))), sum)
		same("total", sp(sparseops.Total(sp(sparseops.Coalesce(a)), sp(sparseops.Coalesce(b)))), sum)
		same("mul", sp(sparseops.Mul(a, b)), de(tensorops.Binary(tensorops.Mul, tensorops.Of(x), tensorops.Of(y))))
		whole := sp(sparseops.Coalesce(a))
		same("mul dense", sp(sparseops.MulDense(whole, y)), de(tensorops.Binary(tensorops.Mul, tensorops.Of(x), tensorops.Of(y))))
		if got, want := de(sparseops.Sum(a)), de(tensorops.Sum(x, nil, false)); !tensor.Equal(got, want) {
			t.Fatalf("the sum of %v is %v, want %v", a, got, want)
		}
		for _, to := range [][]int{{1, shape[1], shape[2]}, {shape[0], 1, 1}, {shape[1], shape[2]}, {1, shape[2]}, {shape[2]}, {}} {
			got, whole, err := sparseops.SumTo(a, to)
			if err != nil {
				t.Fatal(err)
			}
			if whole == nil {
				same("sum to", got, de(tensorops.SumTo(x, to)))
			} else if !tensor.Equal(whole, de(tensorops.SumTo(x, to))) {
				t.Fatalf("the sum of %v to %v is %v", a, to, whole)
			}
		}
		row := de(tensor.From([]float64{2, -3, 5, 7}[:shape[2]], 1, shape[2]))
		same("mul with a row", sp(sparseops.MulDense(whole, row)), de(tensorops.Binary(tensorops.Mul, tensorops.Of(x), tensorops.Of(row))))
		at := r.IntN(dims + 1)
		stacked := sp(sparseops.Stack(at, a, b))
		expand := slices.Insert(slices.Clone(shape), at, 1)
		same("stack", stacked, de(tensorops.Cat([]*tensor.Tensor{de(x.Reshape(expand...)), de(y.Reshape(expand...))}, at)))
		same("select", sp(sparseops.Select(stacked, at, 1)), y)
		into := de(y.Clone())
		if err := sparseops.AddInto(into, a); err != nil || !tensor.Equal(into, sum) {
			t.Fatalf("%v added to %v in place is %v, %v", a, y, into, err)
		}
	}
}

// TestOrderOfSums: values are added in PyTorch's order, which the last bits and the signs of zeros show. The expected bits are
// those of PyTorch 2.6.
func TestOrderOfSums(t *testing.T) {
	t.Parallel()
	sp := must[*tensor.Sparse](t)
	bits := func(s *tensor.Sparse) (out []uint64) {
		for _, v := range must[[]float64](t)(tensor.Copy[float64](s.Values)) {
			out = append(out, math.Float64bits(v))
		}
		return out
	}
	minus := math.Copysign(0, -1)
	negative := math.Float64bits(minus)
	one := func(index []int64, values ...float64) *tensor.Sparse { return sparse([]int{4}, 1, index, values) }
	twice, once := one([]int64{1, 1}, 1e16, 1), one([]int64{1}, -1e16)
	if got := bits(sp(sparseops.Coalesce(sp(sparseops.Add(twice, once))))); got[0] != math.Float64bits(1) { // the first entries meet first
		t.Errorf("the sum is %x", got)
	}
	none := one(nil)
	for name, zero := range map[string]*tensor.Sparse{
		"add":   sp(sparseops.Add(one([]int64{1}, minus), once)),
		"total": sp(sparseops.Total(one([]int64{1}, minus), one([]int64{2}, 3))),
	} {
		if got := bits(zero); got[0] == negative {
			t.Errorf("%s: a negative zero has stayed", name)
		}
	}
	for name, zero := range map[string]*tensor.Sparse{
		"coalesce": sp(sparseops.Coalesce(one([]int64{1, 1}, minus, minus))), "add": sp(sparseops.Add(one([]int64{1}, minus), none)),
		"total": sp(sparseops.Total(none, one([]int64{1}, minus), none)),
	} {
		if got := bits(zero); len(got) != 1 || got[0] != negative {
			t.Errorf("%s: %x, want a negative zero", name, got)
		}
	}
	if got := sp(sparseops.Total(none, none)); got.Values.Dim(0) != 0 {
		t.Errorf("nothing and nothing is %v", got)
	}
}

// TestTypes: values of every type that can be added are, rounded after every step as PyTorch does.
func TestTypes(t *testing.T) {
	t.Parallel()
	s := sparse([]int{4}, 1, []int64{3, 1, 3, 1, 1}, []float64{1, 2, 4, 8, 16})
	for _, dt := range []tensor.DType{
		tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Int8, tensor.Int64,
		tensor.Uint8, tensor.Complex64,
	} {
		c := must[*tensor.Sparse](t)(sparseops.Convert(s, dt))
		got := must[*tensor.Tensor](t)(sparseops.Dense(must[*tensor.Sparse](t)(sparseops.Coalesce(c))))
		want := must[*tensor.Tensor](t)(tensorops.Convert(tensor.Must(tensor.From([]float64{0, 26, 0, 5})), dt))
		if !tensor.Equal(got, want) {
			t.Errorf("%v: %v, want %v", dt, got, want)
		}
	}
	a := must[*tensor.Sparse](t)(sparseops.Convert(s, tensor.Float32))
	if sum := must[*tensor.Sparse](t)(sparseops.Add(a, s)); sum.Values.DType() != tensor.Float64 {
		t.Errorf("float32 and float64 make %v", sum.Values.DType())
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	a := sparse([]int{3}, 1, []int64{1}, []float64{2})
	other := sparse([]int{4}, 1, []int64{1}, []float64{2})
	hybrid := sparse([]int{3, 1}, 1, []int64{1}, []float64{2})
	matrix := sparse([]int{3, 1}, 2, []int64{1, 0}, []float64{2})
	outside := sparse([]int{3}, 1, []int64{3}, []float64{2})
	huge := sparse([]int{math.MaxInt, math.MaxInt, math.MaxInt}, 3, []int64{1, 1, 1}, []float64{2})
	for name, try := range map[string]func() error{
		"shapes":      func() error { _, err := sparseops.Add(a, other); return err },
		"dimensions":  func() error { _, err := sparseops.Mul(hybrid, matrix); return err },
		"an index":    func() error { _, err := sparseops.Coalesce(outside); return err },
		"size":        func() error { _, err := sparseops.Coalesce(huge); return err },
		"no tensor":   func() error { _, err := sparseops.Add(a, nil); return err },
		"no list":     func() error { _, err := sparseops.Stack(0); return err },
		"a dense dim": func() error { _, err := sparseops.Stack(2, hybrid, hybrid); return err },
		"selection":   func() error { _, err := sparseops.Select(matrix, 0, 3); return err },
		"broadcast": func() error {
			_, err := sparseops.MulDense(a, tensor.Must(tensor.New(tensor.Float64, 2, 3)))
			return err
		},
		"in place": func() error { return sparseops.AddInto(tensor.Must(tensor.New(tensor.Float32, 3)), a) },
	} {
		if err := try(); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
