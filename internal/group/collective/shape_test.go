// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/tensor"
)

// shaped returns a tensor of a shape.
func shaped(t interface{ Fatal(args ...any) }, dims []int) *tensor.Tensor {
	x, err := tensor.New(tensor.Uint8, dims...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestShapeIsWrittenOut(t *testing.T) {
	for want, dims := range map[string][]int{
		"[]": {}, "[0]": {0}, "[2, 3]": {2, 3}, "[3, 2]": {3, 2}, "[64, 3, 224, 224]": {64, 3, 224, 224},
		"[100000000, 0]": {100_000_000, 0},
		"[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]": slices.Repeat([]int{1}, 15),
	} {
		if got := ShapeOf(shaped(t, dims)).String(); got != want {
			t.Errorf("%v: %s, want %s", dims, got, want)
		}
	}
	long := ShapeOf(shaped(t, slices.Repeat([]int{1}, 16)))
	if s := long.String(); !strings.HasPrefix(s, "[16 sizes #") {
		t.Error(s)
	}
	if long == ShapeOf(shaped(t, slices.Repeat([]int{1}, 17))) {
		t.Error("hashes do not tell 16 sizes from 17")
	}
	if (Shape{}).Known() || (Shape{}).Hash() != 0 || (Shape{}).String() != "[?]" {
		t.Error("the zero value has an opinion")
	}
}

// TestShapesAgreeExactlyWhenEqual compares random shapes, with sizes beyond what can be written out.
func TestShapesAgreeExactlyWhenEqual(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) []int {
		dims := rapid.SliceOfN(rapid.IntRange(0, 2), 0, 24).Draw(t, "small")
		if len(dims) > 0 { // one may be large: a tensor has a limit
			dims[rapid.IntRange(0, len(dims)-1).Draw(t, "at")] = rapid.IntRange(0, 1<<20).Draw(t, "large")
		}
		return dims
	})
	rapid.Check(t, func(t *rapid.T) {
		a := append([]int{0}, gen.Draw(t, "a")...) // empty, so that it takes no memory
		b := slices.Clone(a)
		if rapid.Bool().Draw(t, "other") {
			b = append([]int{0}, gen.Draw(t, "b")...)
		}
		x, y := ShapeOf(shaped(t, a)), ShapeOf(shaped(t, b))
		if same := slices.Equal(a, b); (x == y) != same || (x.Hash() == y.Hash()) != same {
			t.Fatalf("%v and %v: %v and %v", a, b, x, y)
		}
		if (Shape{x.Lo, x.Hi}) != x || !x.Known() || x.Hash() == 0 || x.Hash() >= 1<<47 {
			t.Fatalf("%v", x)
		}
		if n := len(a); n <= 5 && x.String() != strings.ReplaceAll(fmt.Sprint(a), " ", ", ") {
			t.Fatalf("%v is written %v", a, x)
		}
	})
}

// FuzzShapeText prints whatever another rank may send.
func FuzzShapeText(f *testing.F) {
	f.Add(uint64(3), uint64(7))
	f.Add(^uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, lo, hi uint64) {
		if s := (Shape{lo, hi}).String(); len(s) > 400 {
			t.Errorf("%d characters", len(s))
		}
	})
}

func TestShapeTakesNoMemory(t *testing.T) {
	x := shaped(t, []int{64, 3, 7, 7})
	if n := testing.AllocsPerRun(100, func() { _ = ShapeOf(x).Hash() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
