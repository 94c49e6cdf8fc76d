// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

func drawCounts(t *rapid.T, n int) []int {
	return rapid.SliceOfN(rapid.IntRange(0, 9), n, n).Draw(t, "counts")
}

// TestBlocksCoverTheBuffer: blocks follow each other without gap or overlap, whether their sizes are given or even.
func TestBlocksCoverTheBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "ranks")
		var counts []int
		total := n * rapid.IntRange(0, 5).Draw(t, "each")
		if rapid.Bool().Draw(t, "uneven") {
			counts, total = drawCounts(t, n), 0
			for _, c := range counts {
				total += c
			}
		}
		buf := make([]byte, total)
		for i := range buf {
			buf[i] = byte(i)
		}
		if !fits(total, counts, n) {
			t.Fatal("does not fit")
		}
		if fits(total+1, counts, n) && (counts != nil || n > 1) || total > 0 && fits(total-1, counts, n) && (counts != nil || n > 1) {
			t.Fatal("another length fits too")
		}
		var all []byte
		for i := range n {
			b := Block(buf, counts, n, i)
			if len(b) != BlockSize(total, counts, n, i) {
				t.Fatalf("block %d has %d bytes", i, len(b))
			}
			all = append(all, b...)
		}
		if !bytes.Equal(all, buf) {
			t.Fatalf("%v of %v", all, buf)
		}
		even := true
		for _, c := range counts {
			even = even && c == counts[0]
		}
		if Even(counts) != even {
			t.Fatal("even")
		}
	})
}

// TestPartsAreEven: parts and their segments cover the buffer, split no element and differ by one element at most.
func TestPartsAreEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Parts{Elem: rapid.SampledFrom([]int{1, 2, 4, 8, 16}).Draw(t, "element"), Ranks: rapid.IntRange(1, 9).Draw(t, "ranks")}
		p.Total = p.Elem * rapid.IntRange(0, 50).Draw(t, "elements")
		at := 0
		for i := range p.Ranks {
			from, to := p.Of(i)
			if from != at || (to-from)%p.Elem != 0 || to-from > p.Longest() || to-from < p.Longest()-p.Elem {
				t.Fatalf("part %d of %+v: %d to %d", i, p, from, to)
			}
			size := p.Elem * rapid.IntRange(1, 4).Draw(t, "segment")
			for s := 0; ; s++ {
				a, b := Segment(from, to, size, s)
				if a == b {
					if a != to {
						t.Fatalf("segments of part %d end at %d", i, a)
					}
					break
				}
				if a != at || b-a > size {
					t.Fatalf("segment %d of part %d: %d to %d", s, i, a, b)
				}
				at = b
			}
			at = to
		}
		if at != p.Total {
			t.Fatalf("%+v ends at %d", p, at)
		}
	})
}

// TestCheckFindsEveryWrongLength: a request that fits is taken; with one byte, count or rank more or less it is not.
func TestCheckFindsEveryWrongLength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(t, "ranks")
		rank := rapid.IntRange(0, n-1).Draw(t, "rank")
		r := Request{
			Kind: Kind(rapid.IntRange(0, len(kindNames)-1).Draw(t, "kind")), DType: tensor.Uint8, Op: reduce.Sum,
			Root: rapid.IntRange(0, n-1).Draw(t, "root"),
		}
		counts := drawCounts(t, n)
		total := 0
		for _, c := range counts {
			total += c
		}
		root := rank == r.Root
		lengths := 0 // buffers whose length is checked
		switch r.Kind {
		case AllGather:
			r.In, r.Out, lengths = make([]byte, 3), make([]byte, 3*n), 2
		case AllGatherV:
			r.In, r.Out, r.OutCounts, lengths = make([]byte, counts[rank]), make([]byte, total), counts, 2
		case Gather:
			r.Uneven = true
			r.In = make([]byte, counts[rank])
			if root {
				r.Out, r.OutCounts, lengths = make([]byte, total), counts, 2
			}
		case Scatter:
			r.Uneven = true
			r.Out = make([]byte, counts[rank])
			if root {
				r.In, r.InCounts, lengths = make([]byte, total), counts, 2
			}
		case ReduceScatter:
			r.In, r.InCounts, r.Out, lengths = make([]byte, total), counts, make([]byte, counts[rank]), 2
		case AllToAll:
			other := append([]int{}, counts...)
			r.In, r.Out, r.InCounts, r.OutCounts, lengths = make([]byte, total), make([]byte, total), counts, other, 2
		default:
			r.Out = make([]byte, total)
		}
		if err := r.Check("test: ", rank, n); err != nil {
			t.Fatal(err)
		}
		refused := func(what string, q Request) {
			if err := q.Check("test: ", rank, n); !errors.Is(err, cohort.InvalidArgument) {
				t.Fatalf("%v with %s: %v", q.Kind, what, err)
			}
		}
		if lengths == 2 {
			q := r
			q.In = append(bytes.Clone(r.In), 0)
			refused("a longer input", q)
			q = r
			q.Out = append(bytes.Clone(r.Out), 0)
			refused("a longer output", q)
		}
		if r.Uneven && root && !Even(counts) {
			q := r
			q.Uneven = false
			refused("uneven blocks that it does not mention", q)
		}
		q := r
		q.Root = n
		refused("another root", q)
		q = r
		q.InCounts = make([]int, n+1)
		refused("more counts", q)
		if r.Kind.Reduces() {
			q = r
			q.DType, q.Op = tensor.Float32, reduce.And
			if err := q.Check("test: ", rank, n); !errors.Is(err, cohort.NotSupported) {
				t.Fatalf("%v", err)
			}
			q.Op, q.Out = reduce.Sum, append(make([]byte, len(r.Out)/4*4), 0)
			refused("half an element", q)
		}
	})
}

// TestTransposedBesidePyTorch: next to PyTorch ranks a transposed tensor travels in the order of its memory, as theirs do. Among Go
// ranks it travels in the order of its elements, and so does one with gaps anywhere.
func TestTransposedBesidePyTorch(t *testing.T) {
	t.Parallel()
	memory := []uint8{0, 1, 2, 3, 4, 5}
	transposed := func() *tensor.Tensor {
		return tensor.Must(tensor.Must(tensor.From(bytes.Clone(memory), 3, 2)).Transpose(0, 1))
	}
	gaps := func() *tensor.Tensor {
		return tensor.Must(tensor.Must(tensor.From([]uint8{0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9}, 2, 3, 2)).Select(2, 0))
	}
	for _, test := range []struct {
		name  string
		make  func() *tensor.Tensor
		peers torchcaps.Peers
		want  []uint8
	}{
		{"transposed, Go", transposed, torchcaps.Peers{}, []uint8{0, 2, 4, 1, 3, 5}},
		{"transposed, 1.13", transposed, torchcaps.Exactly(torchcaps.V1_13), memory},
		{"transposed, 2.14", transposed, torchcaps.Exactly(torchcaps.V2_14), memory},
		{"gaps, 2.14", gaps, torchcaps.Exactly(torchcaps.V2_14), memory},
	} {
		g := &Group{Rank: 0, Size: 1, Peers: test.peers}
		x := test.make()
		for name, fill := range map[string]func(c *Call) ([]byte, error){
			"all_reduce": func(c *Call) ([]byte, error) { err := g.AllReduce(c, x, reduce.Sum); return c.Request.Out, err },
			"reduce":     func(c *Call) ([]byte, error) { err := g.Reduce(c, x, reduce.Sum, 0); return c.Request.Out, err },
			"broadcast":  func(c *Call) ([]byte, error) { err := g.Broadcast(c, x, 0); return c.Request.Out, err },
			"scatter": func(c *Call) ([]byte, error) {
				err := g.Scatter(c, x, []*tensor.Tensor{test.make()}, 0)
				return c.Request.In, err
			},
		} {
			var c Call
			sent, err := fill(&c)
			if err != nil || !bytes.Equal(sent, test.want) {
				t.Errorf("%s, %s: sends %v (%v), want %v", test.name, name, sent, err, test.want)
			}
			if len(c.Outputs) != 1 || c.Outputs[0] != x {
				t.Errorf("%s, %s: the result is not the caller's tensor", test.name, name)
			}
			// What arrives in the same order is the same tensor.
			copy(c.Request.Out, test.want)
			if c.Finish != nil && c.Finish() != nil {
				t.Errorf("%s, %s: cannot be finished", test.name, name)
			}
			if !tensor.Equal(x, test.make()) {
				t.Errorf("%s, %s: ends as %v", test.name, name, x)
			}
		}
	}
}

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
