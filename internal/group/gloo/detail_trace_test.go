// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
)

// session214Detail is what two ranks of 2.14 said to each other before their operations with TORCH_DISTRIBUTED_DEBUG=DETAIL, in the
// order of the capture. Messages and monitored barriers are not checked; messages count.
func session214Detail(rank int, m *Mesh) error {
	const float32s = 6
	tensors := func(dtype uint8, shapes ...[]int64) (all []tensorPrint) {
		for _, s := range shapes {
			all = append(all, tensorPrint{DType: dtype, Shape: s})
		}
		return all
	}
	four := []int64{4}
	if rank == 1 {
		four = []int64{5}
	}
	w := NewWrapper(Torch26, m)
	for i, f := range []Fingerprint{
		{Op: 1, Sequence: 0, Tensors: tensors(float32s, []int64{5})},
		{Op: 1, Sequence: 1, Tensors: tensors(float32s, []int64{5})},    // the average
		{Op: 1, Sequence: 2, Tensors: tensors(float32s, []int64{2, 2})}, // complex numbers are viewed as real ones first
		{Op: 3, Sequence: 3, Tensors: tensors(float32s, []int64{5})},
		{Op: 5, Sequence: 4, Tensors: tensors(float32s, []int64{5})},
		{Op: 15, Sequence: 4}, // all_gather_single has not counted
		{Op: 20, Sequence: 8},
		{Op: 1, Sequence: 9, Tensors: tensors(float32s, []int64{4})}, // sparse: the dense shape
		{Op: 4, Sequence: 10, Tensors: tensors(float32s, []int64{4})},
		{Op: 7, Sequence: 11, Tensors: tensors(float32s, []int64{4})},
		{Op: 8, Sequence: 12, Tensors: tensors(float32s, []int64{2})},
		{Op: 9, Sequence: 13, Tensors: tensors(float32s, []int64{2})},
		{Op: 16, Sequence: 15, Tensors: tensors(float32s, []int64{4}, []int64{2})},
		{Op: 10, Sequence: 16},
		{Op: 11, Sequence: 17},
		{Op: 19, Sequence: 18},
		{Op: 2, Sequence: 20},
		{Op: 1, Sequence: 21, Tensors: tensors(float32s, four)},
	} {
		err := w.Check(context.Background(), &f, 10*time.Second)
		if last := i == 17; last != errors.Is(err, cohort.Mismatch) || !last && err != nil {
			return cohort.Newf("test", cohort.Internal, "check %d: %v", i, err)
		}
	}
	return nil
}

// TestDetailFramesAreThoseOfPyTorch runs the checks of the capture with two Go ranks and compares every frame of the helper group, the
// mismatch at its end included.
func TestDetailFramesAreThoseOfPyTorch(t *testing.T) {
	release := func(slot uint64) bool { return slot < 1<<32 && slot%4 == 1 } // four tags a check; the barrier has the first two
	want := recordedTraffic(t, "gloo-detail-2.14.txt", "2.14.1", "of the helper group", release)
	if len(want) < 200 {
		t.Fatalf("only %d kinds of frames in the capture", len(want))
	}
	if diff := cmp.Diff(want, sessionTraffic(t, 2, D, release, session214Detail)); diff != "" {
		t.Fatalf("frames (-recorded +ours):\n%s", diff)
	}
}
