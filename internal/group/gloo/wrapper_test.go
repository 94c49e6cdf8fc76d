// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport/memtransport"
)

// TestFingerprintsAreThoseOfPyTorch has words that real ranks agree with (interop/group runs such operations): all_reduce of
// float32 [2, 3] as the second operation of a group, a barrier as the first, and reduce_scatter_tensor of float32 [6] to [3]
// as the eighth. The document has the first.
func TestFingerprintsAreThoseOfPyTorch(t *testing.T) {
	float := func(dims ...int64) tensorPrint { return tensorPrint{DType: 6, Shape: dims} }
	for _, c := range []struct {
		layout Layout
		print  Fingerprint
		words  []int64
		text   string
	}{
		{Torch113, Fingerprint{Op: 1, Tensors: []tensorPrint{float(2, 3)}}, []int64{1, 1, 6, 0, 2, 2, 3}, "all_reduce(float32[2 3])"},
		{
			Torch26,
			Fingerprint{Op: 1, Sequence: 1, Tensors: []tensorPrint{float(2, 3)}},
			[]int64{1, 1, 1, 6, 0, 2, 2, 3},
			"all_reduce(float32[2 3]) as operation 1",
		},
		{Torch113, Fingerprint{Op: 15}, []int64{15, 0}, "barrier()"},
		{Torch26, Fingerprint{Op: 15}, []int64{15, 0, 0}, "barrier()"},
		{
			Torch26,
			Fingerprint{Op: 16, Sequence: 7, Tensors: []tensorPrint{float(6), float(3)}},
			[]int64{16, 7, 2, 6, 6, 0, 0, 1, 6, 1, 3},
			"reduce_scatter_tensor(float32[6], float32[3]) as operation 7",
		},
	} {
		if d := cmp.Diff(c.words, c.print.Words(c.layout)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.text, d)
		}
		if got := c.print.String(); got != c.text {
			t.Errorf("%q, want %q", got, c.text)
		}
	}
	text, err := os.ReadFile("../../../docs/wire/gloo.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "table: fingerprint\n")
	var documented []int64
	for _, row := range strings.Split(table, "\n")[3:] {
		cells := strings.Split(row, "|")
		if len(cells) != 5 {
			break
		}
		word, err := strconv.ParseInt(strings.TrimSpace(cells[3]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		documented = append(documented, word)
	}
	example := Fingerprint{Op: 1, Sequence: 1, Tensors: []tensorPrint{float(2, 3)}}
	if d := cmp.Diff(example.Words(Torch26), documented); d != "" {
		t.Errorf("the document differs:\n%s", d)
	}
}

func TestFingerprintsTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := rapid.SampledFrom([]Layout{Torch113, Torch26}).Draw(t, "layout")
		f := Fingerprint{Op: rapid.Uint8().Draw(t, "op"), Tensors: []tensorPrint{}}
		if layout == Torch26 {
			f.Sequence = rapid.Uint64Range(0, 1<<62).Draw(t, "sequence")
		}
		for range rapid.IntRange(0, 4).Draw(t, "tensors") {
			f.Tensors = append(f.Tensors, tensorPrint{
				DType: rapid.Uint8Range(0, 30).Draw(t, "type"), Device: rapid.Uint8Range(0, 20).Draw(t, "device"),
				Shape: append([]int64{}, rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 0, 6).Draw(t, "shape")...),
			})
		}
		words := f.Words(layout)
		got, err := parseFingerprint(layout, getWords(putWords(words)))
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Tensors {
			if got.Tensors[i].Shape == nil {
				got.Tensors[i].Shape = []int64{}
			}
		}
		if d := cmp.Diff(f, got); d != "" {
			t.Fatal(d)
		}
		_ = got.String()
		cut := words[:rapid.IntRange(0, len(words)-1).Draw(t, "cut")]
		if _, err := parseFingerprint(layout, cut); !errors.Is(err, cohort.Protocol) {
			t.Fatalf("%v of %v was taken: %v", cut, words, err)
		}
	})
}

// FuzzFingerprint reads whatever another rank may send.
func FuzzFingerprint(f *testing.F) {
	f.Add(putWords([]int64{1, 1, 1, 6, 0, 2, 2, 3}))
	f.Add(putWords([]int64{1, 1, 1 << 40, 6, 0, 2, 2, 3}))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, l := range []Layout{Torch113, Torch26} {
			if p, err := parseFingerprint(l, getWords(data)); err == nil {
				if got, want := len(p.Words(l)), len(getWords(data)); got != want {
					t.Errorf("%d words of %d", got, want)
				}
				_ = p.String()
			}
		}
	})
}

// TestWrapperInStep runs random operations on random ranks: where all call the same all pass, else all get a mismatch that
// names them, and the wrapper continues.
func TestWrapperInStep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(2, 6).Draw(rt, "size")
		layout := rapid.SampledFrom([]Layout{Torch113, Torch26}).Draw(rt, "layout")
		steps := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 3), size, size), 1, 6).Draw(rt, "steps")
		w := memtransport.New(size)
		calls := []Fingerprint{
			{Op: 1, Tensors: []tensorPrint{{DType: 6, Shape: []int64{2, 3}}}},
			{Op: 1, Tensors: []tensorPrint{{DType: 6, Shape: []int64{3, 2}}}},
			{Op: 1, Tensors: []tensorPrint{{DType: 6, Shape: []int64{6}}}},
			{Op: 15},
		}
		var wg sync.WaitGroup
		errs := make([]error, size)
		for r := range size {
			wg.Go(func() {
				wrapper := NewWrapper(layout, w.Mesh(r))
				for i, step := range steps {
					err := wrapper.Check(context.Background(), &calls[step[r]], time.Minute)
					same := true
					for _, s := range step {
						same = same && s == step[0]
					}
					var e *cohort.Error
					switch {
					case same && err != nil, !same && (!errors.As(err, &e) || e.Code != cohort.Mismatch):
						errs[r] = fmt.Errorf("rank %d, step %d %v: %w", r, i, step, err)
						return
					case !same && (step[e.Rank] == step[r] || !strings.Contains(err.Error(), fmt.Sprintf("rank %d runs", r))):
						errs[r] = fmt.Errorf("rank %d, step %d %v names the wrong one: %w", r, i, step, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestWrapperNamesTheLate: rank 0 reports who did not come, and the others do not wait for ever.
func TestWrapperNamesTheLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memtransport.New(3)
		var wg sync.WaitGroup
		for r := range 2 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := NewWrapper(Torch26, w.Mesh(r)).Check(ctx, &Fingerprint{Op: 15}, time.Minute)
				if err == nil || r == 0 && (!strings.Contains(err.Error(), "rank 2 did not reach the barrier") ||
					!errors.Is(err, cohort.DeadlineExceeded)) {
					t.Errorf("rank %d: %v", r, err)
				}
			})
		}
		wg.Wait()
	})
}
