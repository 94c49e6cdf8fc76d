// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
)

func TestSlicesInAndOutWithoutCopy(t *testing.T) {
	t.Parallel()
	data := []float32{1, 2, 3, 4, 5, 6}
	x := Must(From(data, 2, 3))
	data[4] = 50
	if v, err := x.At(1, 1); err != nil || v != float32(50) {
		t.Fatalf("At(1, 1) = %v, %v", v, err)
	}
	if err := x.Set(7, 0, -1); err != nil || data[2] != 7 {
		t.Fatalf("Set: %v, data %v", err, data)
	}
	back, err := Data[float32](x)
	if err != nil || &back[0] != &data[0] || len(back) != 6 {
		t.Fatalf("Data: %v, other memory: %v", err, &back[0] != &data[0])
	}
	if _, err := Data[float64](x); !errors.Is(err, cohort.InvalidArgument) {
		t.Fatalf("Data of the wrong type: %v", err)
	}
	if _, err := From(data, 4, 2); !errors.Is(err, cohort.InvalidArgument) {
		t.Fatalf("From with the wrong shape: %v", err)
	}
}

// TestZeroTensor: the zero Tensor is an error, not a panic.
func TestZeroTensor(t *testing.T) {
	t.Parallel()
	var zero Tensor
	if text := zero.String(); text != "tensor(<no memory>)" {
		t.Error(text)
	}
	for name, err := range map[string]error{
		"At": second(zero.At()), "Set": zero.Set(1), "CopyFrom": zero.CopyFrom(Must(From([]float32{1}))),
		"Data": second(Data[float32](&zero)),
	} {
		if !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestEveryTypeGoesThroughOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    any
		dt    DType
		shape []int
		last  any
	}{
		{uint8(3), Uint8, nil, uint8(3)},
		{[]int8{1, -2}, Int8, []int{2}, int8(-2)},
		{[]int16{5}, Int16, []int{1}, int16(5)},
		{[][]int32{{1, 2}, {3, 4}}, Int32, []int{2, 2}, int32(4)},
		{[]int64{9}, Int64, []int{1}, int64(9)},
		{[]int{9}, Int64, []int{1}, int64(9)},
		{[2][3]float32{{}, {0, 0, 1}}, Float32, []int{2, 3}, float32(1)},
		{[]float64{0.5}, Float64, []int{1}, 0.5},
		{[]complex64{1i}, Complex64, []int{1}, complex64(1i)},
		{[]complex128{2i}, Complex128, []int{1}, 2i},
		{[][]bool{{true}}, Bool, []int{1, 1}, true},
		{[]F16{ToF16(1.5)}, Float16, []int{1}, ToF16(1.5)},
		{[][]BF16{{ToBF16(1.5)}}, BFloat16, []int{1, 1}, ToBF16(1.5)},
	} {
		x, err := Of(c.in)
		if err != nil {
			t.Fatalf("%T: %v", c.in, err)
		}
		idx := slices.Repeat([]int{-1}, x.Dims())
		last, err := x.At(idx...)
		if x.DType() != c.dt || !slices.Equal(x.Shape(), c.shape) || last != c.last || err != nil {
			t.Errorf("%T: %v%v, last %v (%v)", c.in, x.DType(), x.Shape(), last, err)
		}
	}
	for _, bad := range []any{nil, "x", []string{"a"}, [][]int{{1}, {2, 3}}, map[int]int{}, struct{}{}, []any{[]int{1}}} {
		if _, err := Of(bad); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("Of(%#v): %v", bad, err)
		}
	}
}

func TestSetConvertsAndRefuses(t *testing.T) {
	t.Parallel()
	x := Must(New(Int8, 1))
	for _, v := range []any{200, -129, 1.5, "1", math.NaN(), 1i} {
		if err := x.Set(v, 0); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("int8 took %v: %v", v, err)
		}
	}
	if err := x.Set(-128.0, 0); err != nil {
		t.Error(err)
	}
	h := Must(Full(Float16, 0.1, 2))
	if v, _ := h.At(1); v != ToF16(0.1) {
		t.Errorf("full of halves: %v", v)
	}
	if _, err := x.Item(); err != nil {
		t.Error(err)
	}
	if _, err := h.Item(); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("item of two: %v", err)
	}
	if _, err := x.At(1); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("index outside: %v", err)
	}
}

func TestStorageIsAligned(t *testing.T) {
	t.Parallel()
	for n := 1; n < 300; n++ {
		s, err := NewStorage(n)
		if err != nil || s.Len() != n {
			t.Fatal(s.Len(), err)
		}
		b, _ := s.Bytes()
		if uintptr(unsafe.Pointer(&b[0]))%Alignment != 0 {
			t.Fatalf("%d bytes at %p", n, &b[0])
		}
	}
}

func TestReleaseEndsAccess(t *testing.T) {
	t.Parallel()
	released := 0
	s := WrapStorage(make([]byte, 16), "shared segment", func() { released++ })
	x, err := FromStorage(s, Float32, []int{2, 2}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Release()
	s.Release()
	if released != 1 {
		t.Fatalf("released %d times", released)
	}
	_, err1 := x.Bytes()
	_, err2 := x.At(0, 0)
	_, err3 := x.Clone()
	for _, err := range []error{err1, err2, err3, x.Set(1, 0, 0), x.Fill(0)} {
		if !errors.Is(err, cohort.Closed) {
			t.Errorf("released storage: %v", err)
		}
	}
	if got := x.String(); got != "tensor(<released shared segment memory>, size=(2, 2), dtype=torch.float32)" {
		t.Error(got)
	}
}

func TestPoolLendsAgain(t *testing.T) {
	t.Parallel()
	p := NewPool(1 << 20)
	a, err := p.Get(1000)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := a.Bytes()
	a.Release()
	b, _ := p.Get(900)
	second, _ := b.Bytes()
	if &first[0] != &second[0] || len(second) != 900 {
		t.Error("the pool did not lend the memory again")
	}
	big, _ := p.Get(2 << 20)
	big.Release()
	if p.kept != 0 {
		t.Errorf("the pool keeps %d bytes over its limit", p.kept)
	}
	if _, err := p.Get(-1); !errors.Is(err, cohort.InvalidArgument) {
		t.Error(err)
	}
}

func TestGeometryFromThePeerIsChecked(t *testing.T) {
	t.Parallel()
	s, _ := NewStorage(64)
	huge := math.MaxInt
	for _, c := range []struct {
		dt             DType
		shape, strides []int
		offset         int
		code           cohort.Code
	}{
		{Float32, []int{16}, nil, 0, 0},
		{Float32, []int{16}, nil, 1, cohort.InvalidArgument},
		{Float32, []int{17}, nil, 0, cohort.InvalidArgument},
		{Float32, []int{-1}, nil, 0, cohort.InvalidArgument},
		{Float32, []int{2, 8}, []int{8, 1}, 0, 0},
		{Float32, []int{2, 8}, []int{9, 1}, 0, cohort.InvalidArgument},
		{Float32, []int{2}, []int{-1}, 5, cohort.InvalidArgument},
		{Float32, []int{2}, []int{1, 1}, 5, cohort.InvalidArgument},
		{Float32, []int{2}, []int{huge}, 1, cohort.InvalidArgument},
		{Float32, []int{3}, []int{huge}, 0, cohort.InvalidArgument},
		{Float32, []int{1}, []int{huge}, 15, 0},
		{Float32, []int{1}, nil, huge, cohort.InvalidArgument},
		{Float32, []int{1}, nil, -1, cohort.InvalidArgument},
		{Float32, []int{huge, huge}, nil, 0, cohort.TooLarge},
		{Float32, []int{0, huge}, nil, 0, cohort.TooLarge},
		{Float32, []int{1 << 20, 1}, []int{0, 0}, 0, 0},
		{Float32, []int{1 << 29}, []int{0}, 0, cohort.TooLarge},
		{DType(12), []int{1}, nil, 0, cohort.InvalidArgument},
		{Float32, make([]int, 65), nil, 0, cohort.InvalidArgument},
	} {
		x, err := FromStorage(s, c.dt, c.shape, c.strides, c.offset)
		if cohort.CodeOf(err) != c.code || (err == nil) != (x != nil) {
			t.Errorf("%v %v %v %d: %v", c.dt, c.shape, c.strides, c.offset, err)
		}
	}
	if _, err := FromStorage(nil, Float32, nil, nil, 0); !errors.Is(err, cohort.InvalidArgument) {
		t.Error(err)
	}
}

// TestAcceptedGeometryLiesInside walks every element of whatever FromStorage accepts.
func TestAcceptedGeometryLiesInside(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.IntRange(0, 200).Draw(t, "bytes")
		s, _ := NewStorage(bytes)
		dt := rapid.SampledFrom([]DType{Uint8, Int16, Float32, Float64, Complex128}).Draw(t, "dtype")
		dim := rapid.OneOf(rapid.IntRange(-1, 6), rapid.Int())
		shape := rapid.SliceOfN(dim, 0, 4).Draw(t, "shape")
		strides := rapid.SliceOfN(dim, len(shape), len(shape)).Draw(t, "strides")
		x, err := FromStorage(s, dt, shape, strides, dim.Draw(t, "offset"))
		if err != nil {
			return
		}
		if x.Numel() > 5000 {
			return
		}
		n := 0
		x.each(func(at int) bool {
			if at < 0 || (at+1)*dt.Size() > bytes {
				t.Fatalf("element %d of %d bytes", at, bytes)
			}
			n++
			return true
		})
		if n != x.Numel() {
			t.Fatalf("%d of %d elements", n, x.Numel())
		}
		if c, err := x.Contiguous(); err != nil || !SameBits(c, x) {
			t.Fatalf("contiguous: %v", err)
		}
	})
}

// model is a tensor as a plain list of values, the reference for views.
type model struct {
	shape  []int
	values []int64
}

func (m model) at(idx []int) int64 {
	i := 0
	for d, x := range idx {
		i = i*m.shape[d] + x
	}
	return m.values[i]
}

// rebuild makes a model of another shape whose element at idx is that of m at from(idx).
func (m model) rebuild(shape []int, from func(idx []int) []int) model {
	out := model{shape: shape}
	idx := make([]int, len(shape))
	for range product(shape) {
		out.values = append(out.values, m.at(from(slices.Clone(idx))))
		for d := len(idx) - 1; d >= 0; d-- {
			if idx[d]++; idx[d] < shape[d] {
				break
			}
			idx[d] = 0
		}
	}
	return out
}

func TestViewsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(1, 4), 1, 4).Draw(t, "shape")
		data := make([]int64, product(shape))
		for i := range data {
			data[i] = int64(i)
		}
		x, m := Must(From(data, shape...)), model{shape, data}
		for range rapid.IntRange(0, 6).Draw(t, "steps") {
			if x.Dims() == 0 {
				break
			}
			d := rapid.IntRange(0, x.Dims()-1).Draw(t, "dim")
			var err error
			switch rapid.IntRange(0, 5).Draw(t, "view") {
			case 0:
				from := rapid.IntRange(0, x.Dim(d)-1).Draw(t, "from")
				n := rapid.IntRange(1, x.Dim(d)-from).Draw(t, "n")
				x, err = x.Narrow(d, from, n)
				s := slices.Clone(m.shape)
				s[d] = n
				m = m.rebuild(s, func(idx []int) []int { idx[d] += from; return idx })
			case 1:
				i := rapid.IntRange(0, x.Dim(d)-1).Draw(t, "index")
				x, err = x.Select(d, i)
				m = m.rebuild(slices.Delete(slices.Clone(m.shape), d, d+1), func(idx []int) []int { return slices.Insert(idx, d, i) })
			case 2:
				e := rapid.IntRange(0, x.Dims()-1).Draw(t, "other")
				x, err = x.Transpose(d, e)
				s := slices.Clone(m.shape)
				s[d], s[e] = s[e], s[d]
				m = m.rebuild(s, func(idx []int) []int { idx[d], idx[e] = idx[e], idx[d]; return idx })
			case 3:
				step := rapid.IntRange(1, 3).Draw(t, "step")
				from := rapid.IntRange(0, x.Dim(d)-1).Draw(t, "from")
				s := slices.Clone(m.shape)
				s[d] = (x.Dim(d)-from-1)/step + 1
				x, err = x.Slice(d, from, x.Dim(d), step)
				m = m.rebuild(s, func(idx []int) []int { idx[d] = from + idx[d]*step; return idx })
			case 4:
				s := []int{-1}
				if x.Dim(d) > 1 && x.Numel()%x.Dim(d) == 0 {
					s = []int{x.Dim(d), -1}
				}
				if v, viewErr := x.View(s...); viewErr == nil {
					x = v
				} else {
					x, err = x.Reshape(s...)
				}
				m = model{x.Shape(), m.values}
			case 5:
				x, err = x.Expand(append([]int{2}, x.Shape()...)...)
				m = m.rebuild(append([]int{2}, m.shape...), func(idx []int) []int { return idx[1:] })
			}
			if err != nil {
				t.Fatal(err)
			}
			if x.Numel() > 500 {
				break
			}
		}
		got, err := Copy[int64](x)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.values, got); diff != "" || !slices.Equal(m.shape, x.Shape()) {
			t.Fatalf("shape %v, want %v: %s", x.Shape(), m.shape, diff)
		}
		if !Equal(x, Must(From(m.values, m.shape...))) && len(m.shape) > 0 {
			t.Fatal("Equal says no")
		}
	})
}

func TestViewsRefuse(t *testing.T) {
	t.Parallel()
	x := Must(New(Float32, 2, 3))
	for name, f := range map[string]func() (*Tensor, error){
		"narrow":    func() (*Tensor, error) { return x.Narrow(0, 1, 2) },
		"narrow2":   func() (*Tensor, error) { return x.Narrow(0, math.MaxInt, math.MaxInt) },
		"axis":      func() (*Tensor, error) { return x.Narrow(2, 0, 1) },
		"select":    func() (*Tensor, error) { return x.Select(1, 3) },
		"slice":     func() (*Tensor, error) { return x.Slice(0, 0, 2, 0) },
		"transpose": func() (*Tensor, error) { return x.Transpose(0, -3) },
		"expand":    func() (*Tensor, error) { return x.Expand(4, 3) },
		"view":      func() (*Tensor, error) { return x.View(4, -1) },
		"holes":     func() (*Tensor, error) { return x.View(-1, -1) },
		"overflow":  func() (*Tensor, error) { return x.View(math.MaxInt, math.MaxInt) },
		"strided":   func() (*Tensor, error) { return Must(x.Transpose(0, 1)).View(6) },
		"new":       func() (*Tensor, error) { return New(Float32, -1) },
		"bytes": func() (*Tensor, error) {
			_, err := Must(x.Transpose(0, 1)).Bytes()
			return nil, err
		},
	} {
		if _, err := f(); !errors.Is(err, cohort.InvalidArgument) && !errors.Is(err, cohort.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Slices begin and end where those of Python do.
func TestSliceCountsAsPython(t *testing.T) {
	t.Parallel()
	x := Must(From([]int64{0, 1, 2, 3}))
	for s, want := range map[[3]int][]int64{
		{0, 4, 1}: {0, 1, 2, 3}, {-2, 9, 1}: {2, 3}, {0, -1, 1}: {0, 1, 2}, {3, 1, 1}: {}, {-9, 9, 2}: {0, 2}, {4, 4, 1}: {},
		{-1, math.MaxInt, 1}: {3},
		{math.MinInt, -3, 1}: {0}, {1, 4, 5}: {1},
	} {
		got, err := Copy[int64](Must(x.Slice(0, s[0], s[1], s[2])))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v is %v, %v; want %v", s, got, err, want)
		}
	}
}

func TestUnalignedMemory(t *testing.T) {
	t.Parallel()
	raw := alignedBytes(17)[1:]
	x, err := FromStorage(WrapStorage(raw, "wire", nil), Float64, []int{2}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err = x.Set(2.5, 1); err != nil {
		t.Fatal(err)
	}
	if _, err = Data[float64](x); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("unaligned data: %v", err)
	}
	got, err := Copy[float64](x)
	if err != nil || got[1] != 2.5 {
		t.Error(got, err)
	}
}

func TestEqualAndAllClose(t *testing.T) {
	t.Parallel()
	nan := float32(math.NaN())
	a := Must(Of([]float32{1, 0, nan}))
	b := Must(Of([]float32{1, float32(math.Copysign(0, -1)), nan}))
	if Equal(a, b) || SameBits(a, b) || !SameBits(a, Must(a.Clone())) {
		t.Error("NaN is equal to nothing, -0 is not 0 in bits")
	}
	if AllClose(a, b, 0, 0, false) || !AllClose(a, b, 0, 0, true) {
		t.Error("AllClose and NaN")
	}
	c, d := Must(Of([]float64{100, math.Inf(1)})), Must(Of([]float64{100.0005, math.Inf(1)}))
	if !AllClose(c, d, 1e-5, 1e-8, false) || AllClose(c, d, 1e-6, 1e-8, false) {
		t.Error("AllClose and its limits")
	}
	if AllClose(Must(Of([]float64{1})), Must(Of([]float64{math.Inf(1)})), 1, 1, false) {
		t.Error("a number is close to infinity")
	}
	z, y := Must(Of([]F16{0x8000})), Must(Of([]F16{0}))
	if !Equal(z, y) {
		t.Error("-0 equals 0 in halves too")
	}
}

func TestOverlaps(t *testing.T) {
	t.Parallel()
	x := Must(New(Float32, 10))
	a, b := Must(x.Narrow(0, 0, 5)), Must(x.Narrow(0, 5, 5))
	if Overlaps(a, b) || !Overlaps(a, x) || !Overlaps(x, Must(x.Narrow(0, 9, 1))) {
		t.Error("overlap")
	}
}
