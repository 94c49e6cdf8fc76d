// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
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
