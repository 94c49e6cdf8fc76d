// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

func of(x any) *tensor.Tensor { return tensor.Must(tensor.Of(x)) }

func must(t *testing.T) func(*tensor.Tensor, error) *tensor.Tensor {
	t.Helper()
	return func(x *tensor.Tensor, err error) *tensor.Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func same(t *testing.T, got *tensor.Tensor, want any) {
	t.Helper()
	if w := of(want); !tensor.Equal(got, w) {
		t.Errorf("got %v, want %v", got, w)
	}
}

func TestBroadcast(t *testing.T) {
	t.Parallel()
	ok := must(t)
	same(t, ok(Binary(Add, Of(of([][]float32{{1}, {2}})), Of(of([]float32{10, 20, 30})))), [][]float32{{11, 21, 31}, {12, 22, 32}})
	same(t, ok(Binary(Sub, Num(int64(5)), Of(of([]int32{1, 2})))), []int32{4, 3})
	same(t, ok(Binary(Div, Of(of([]int64{1, 2})), Num(int64(2)))), []float32{0.5, 1})
	same(t, ok(Binary(Mul, Of(of([]uint8{200, 3})), Num(int64(2)))), []uint8{144, 6})
	same(t, ok(Binary(Mul, Of(of([]bool{true, false})), Of(of([]bool{true, true})))), []bool{true, false})
	same(t, ok(Binary(Add, Of(of([]bool{true, false})), Of(of([]bool{true, false})))), []bool{true, false})
	same(t, ok(Binary(Mul, Of(of([]complex64{1i})), Of(of([]complex64{1i})))), []complex64{-1})
	for _, c := range []struct{ a, b Operand }{
		{Of(of([]float32{1, 2})), Of(of([]float32{1, 2, 3}))},
		{Of(of([]bool{true})), Of(of([]bool{true}))}, // subtraction of bools
		{Of(tensor.Must(tensor.New(tensor.Float8E5M2, 1))), Num(1.0)},
	} {
		if _, err := Binary(Sub, c.a, c.b); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// TestHugeBroadcast: operands of a few bytes must not stand for more memory than there is.
func TestHugeBroadcast(t *testing.T) {
	t.Parallel()
	row := tensor.Must(tensor.Must(tensor.New(tensor.Uint8, 1<<20)).View(1, 1<<20))
	col := tensor.Must(row.View(1<<20, 1))
	if _, err := Binary(Add, Of(row), Of(col)); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a result of 2^40 elements: %v", err)
	}
	if _, err := MatMul(col, row); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a product of 2^40 elements: %v", err)
	}
}

func TestReductions(t *testing.T) {
	t.Parallel()
	ok := must(t)
	x := of([][]float32{{1, 2, 3}, {4, 5, 6}})
	same(t, ok(Sum(x, []int{0}, false)), []float32{5, 7, 9})
	same(t, ok(Sum(x, []int{-1}, true)), [][]float32{{6}, {15}})
	same(t, ok(Sum(x, nil, false)), float32(21))
	same(t, ok(Mean(x, []int{0, 1}, false)), float32(3.5))
	same(t, ok(Sum(of([]bool{true, true}), nil, false)), int64(2))
	same(t, ok(Sum(tensor.Must(tensor.New(tensor.Float32, 0, 2)), []int{0}, false)), []float32{0, 0})
	values, at, err := Max(x, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	same(t, values, [][]float32{{4, 5, 6}})
	same(t, at, [][]int64{{1, 1, 1}})
	if v, _ := ok(Mean(tensor.Must(tensor.New(tensor.Float32, 0)), nil, false)).Item(); v == v {
		t.Errorf("the mean of nothing is %v", v)
	}
	for _, err := range []error{
		second(Sum(x, []int{2}, false)), second(Sum(x, []int{0, -2}, false)), second(Mean(of([]int64{1}), nil, false)),
		second(MaxAll(tensor.Must(tensor.New(tensor.Float32, 0)))), second(MatMul(x, x)), second(Cat(nil, 0)),
		second(Cat([]*tensor.Tensor{x, of([]float32{1})}, 0)), second(Permute(x, []int{0, 0})),
		second(Embedding(x, of([]int64{2}))), second(MaskedFill(x, x, 0)), second(LayerNorm(x, 3, 0)),
		second(Softmax(of([]int64{1}), 0, false)),
		second(NewNLL(x, of([]int64{0, 3}), -100)), second(NewNLL(x, of([]int64{0}), -100)), second(NewNLL(x, of([]int32{0, 0}), -100)),
	} {
		if !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("error %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestMatMul compares all combinations of dimensions with a plain loop over integers.
func TestMatMul(t *testing.T) {
	t.Parallel()
	ok := must(t)
	r := rand.New(rand.NewPCG(1, 2))
	fill := func(shape ...int) *tensor.Tensor {
		x := tensor.Must(tensor.New(tensor.Int64, shape...))
		data, _ := tensor.Data[int64](x)
		for i := range data {
			data[i] = r.Int64N(9) - 4
		}
		return x
	}
	for _, c := range [][2][]int{
		{{3, 4}, {4, 5}},
		{{4}, {4}},
		{{4}, {4, 5}},
		{{3, 4}, {4}},
		{{2, 3, 4}, {4, 5}},
		{{3, 4}, {2, 4, 5}},
		{{2, 1, 3, 4}, {6, 4, 5}},
		{{0, 4}, {4, 5}},
		{{3, 0}, {0, 5}},
		{{2, 3, 4}, {4}},
		{{4}, {2, 4, 5}},
		{{0, 3, 4}, {4, 5}},
	} {
		a, b := fill(c[0]...), fill(c[1]...)
		want := ok(MatMul(a, b))
		for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.Complex64, tensor.Int32} {
			got := ok(MatMul(ok(Convert(a, dt)), ok(Convert(b, dt))))
			if got.DType() != dt || !tensor.Equal(ok(Convert(got, tensor.Int64)), want) {
				t.Errorf("%v of %v: %v, want %v", c, dt, got, want)
			}
		}
	}
	// The integers themselves.
	same(t, ok(MatMul(of([][]int64{{1, 2}, {3, 4}}), of([][]int64{{5}, {6}}))), [][]int64{{17}, {39}})
}

func TestStridedAndUnaligned(t *testing.T) {
	t.Parallel()
	ok := must(t)
	x := ok(of([][]float32{{1, 2}, {3, 4}}).Transpose(0, 1))
	same(t, ok(Binary(Add, Of(x), Num(1.0))), [][]float32{{2, 4}, {3, 5}})
	same(t, ok(MatMul(x, x)), [][]float32{{7, 15}, {10, 22}})
	raw := make([]byte, 9)
	copy(raw[1:], []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40})
	odd := ok(tensor.FromStorage(tensor.WrapStorage(raw[1:], "test", nil), tensor.Float32, []int{1, 2}, nil, 0))
	same(t, ok(MatMul(odd, of([][]float32{{1}, {1}}))), [][]float32{{3}})
	same(t, ok(Binary(Mul, Of(odd), Num(2.0))), [][]float32{{2, 4}})
}

func TestConvert(t *testing.T) {
	t.Parallel()
	ok := must(t)
	for _, from := range widths {
		for _, to := range widths {
			x := ok(Convert(of([]int64{0, 1}), from))
			got := ok(Convert(x, to))
			if got.DType() != to || !tensor.Equal(ok(Convert(got, tensor.Int64)), of([]int64{0, 1})) {
				t.Errorf("%v to %v: %v", from, to, got)
			}
		}
	}
	same(t, ok(Convert(of([]float32{-1.7, 2.5}), tensor.Int32)), []int32{-1, 2})
	if _, err := Convert(of([]float32{1}), tensor.Float8E5M2); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("float8: %v", err)
	}
}

// TestOverflow: a partial sum that float32 has no place for makes the sum infinite, along rows and columns, though sums are computed in
// float64. What is small is not rounded on the way.
func TestOverflow(t *testing.T) {
	t.Parallel()
	ok := must(t)
	inf := float32(math.Inf(1))
	x := of([][]float32{{3e38, 3e38, -3e38}, {1, 3e38, 2}, {-3e38, -3e38, 3e38}})
	same(t, ok(Sum(x, []int{1}, false)), []float32{inf, 3e38, -inf})
	same(t, ok(Sum(x, []int{0}, false)), []float32{0, inf, 0})
	same(t, ok(Mean(of([]float32{3e38, 3e38}), nil, false)), inf)
	same(t, ok(Sum(of([]float32{1, 1e-8, -1}), nil, false)), float32(1e-8))
	same(t, ok(Sum(of([]complex64{3e38, 3e38i, 3e38, -3e38}), nil, false)), complex64(complex(inf, 3e38)))
	same(t, ok(Sum(of([]float64{3e38, 3e38, -3e38}), nil, false)), 3e38)
	same(t, ok(Sum(of([]float32{inf, 3e38, 1, 2e38}), nil, false)), inf)
	same(t, ok(Sum(of([][]float32{{inf, 1}, {2, 3}}), []int{1}, false)), []float32{inf, 5})
	same(t, ok(Sum(of([]complex64{1, 2i, complex64(complex(0, inf))}), nil, false)), complex64(complex(1, inf)))
}

// TestLimits: only sums that may overflow are looked at element by element, not those of numbers that are infinite themselves.
func TestLimits(t *testing.T) {
	t.Parallel()
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		x    []float32
		slow bool
	}{
		{[]float32{1, -2}, false},
		{[]float32{inf, 1}, false},
		{[]float32{-inf, float32(math.NaN()), 1e38}, false},
		{[]float32{2e38, 2e38}, true},
		{[]float32{inf, 2e38, -2e38}, true},
	} {
		if slow := singles.limit(c.x, len(c.x)) != nil; slow != c.slow {
			t.Errorf("%v: %v", c.x, slow)
		}
		z := make([]complex128, len(c.x))
		for i, v := range c.x {
			z[i] = complex(0, float64(v))
		}
		if slow := complexes(tensor.Complex64).limit(z, len(z)) != nil; slow != c.slow {
			t.Errorf("%v: %v", z, slow)
		}
	}
}

// TestConstantRows: a row of equal numbers has no deviation, however large they are.
func TestConstantRows(t *testing.T) {
	t.Parallel()
	for _, v := range []float64{3e38, -1e300, 1e15 / 3, 0.1} {
		for _, n := range []int{1, 3, 5, 7, 10, 100} {
			s, err := LayerNorm(tensor.Must(tensor.Full(tensor.Float64, v, n)), 1, 1e-5)
			if err != nil {
				t.Fatal(err)
			}
			same(t, s.Normal, make([]float64, n))
		}
	}
}

// TestHalfNormGradient: the sum of a normalised row is 0 whatever the row is, so its gradient is too, but for what float32 rounds.
func TestHalfNormGradient(t *testing.T) {
	t.Parallel()
	for _, dt := range []tensor.DType{tensor.Float16, tensor.BFloat16} {
		row, err := Convert(of([]float32{0.003, -0.012, 0.027, 0.0001, 0.049}), dt)
		if err != nil {
			t.Fatal(err)
		}
		s, err := LayerNorm(row, 1, 1e-10)
		if err != nil {
			t.Fatal(err)
		}
		ones, err := Convert(of([]float32{1, 1, 1, 1, 1}), dt)
		if err != nil {
			t.Fatal(err)
		}
		grad, err := s.Grad(ones, 1)
		if err != nil {
			t.Fatal(err)
		}
		if most, err := Norm(grad, math.Inf(1)); err != nil || most > 1e-3 {
			t.Errorf("the gradient in %v is %v, %v", dt, grad, err)
		}
	}
}

func TestNorm(t *testing.T) {
	t.Parallel()
	for p, want := range map[float64]float64{2: 5, 1: 7, math.Inf(1): 4} {
		if got, err := Norm(of([]float32{3, -4}), p); err != nil || got != want {
			t.Errorf("%v-norm %v, %v", p, got, err)
		}
	}
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64} { // squares of float32 overflow, as in PyTorch
		if got, err := Norm(tensor.Must(tensor.Full(dt, 1e20, 2)), 2); err != nil || math.IsInf(got, 1) != (dt == tensor.Float32) {
			t.Errorf("the norm of large %v is %v, %v", dt, got, err)
		}
	}
	if !slices.Equal(Inverse([]int{2, 0, 1}), []int{1, 2, 0}) {
		t.Error("Inverse is wrong")
	}
}

// TestPowers: exponents that are numbers use the square root, those in tensors do not, as in PyTorch.
func TestPowers(t *testing.T) {
	t.Parallel()
	inf, minus0 := math.Inf(1), math.Copysign(0, -1)
	x := of([]float64{-inf, minus0})
	for _, c := range []struct {
		exponent Operand
		want     [2]float64
	}{
		{Num(0.5), [2]float64{math.NaN(), minus0}},
		{Num(-0.5), [2]float64{math.NaN(), -inf}},
		{Of(of(0.5)), [2]float64{inf, 0}},
		{Of(of(-0.5)), [2]float64{0, inf}},
	} {
		got, err := tensor.Copy[float64](must(t)(Binary(Pow, Of(x), c.exponent)))
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if math.Float64bits(v) != math.Float64bits(c.want[i]) && !(math.IsNaN(v) && math.IsNaN(c.want[i])) {
				t.Errorf("power %+v of %v is %v, want %v", c.exponent, x, got, c.want)
			}
		}
	}
}
