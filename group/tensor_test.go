// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/tensor"
)

// fullArena is an engine whose segment has no room.
type fullArena struct{ collective.Engine }

func (fullArena) Alloc(n int) (*tensor.Storage, error) {
	return nil, cohort.Newf("shm: alloc", cohort.Exhausted, "%d bytes", n)
}

// TestNewTensorOfAFullSegment: a tensor for which the segment has no room is on the heap.
func TestNewTensorOfAFullSegment(t *testing.T) {
	t.Parallel()
	x, err := (&Group{engine: fullArena{}}).NewTensor(tensor.Float32, 2, 3)
	if err != nil || x.Numel() != 6 || x.Storage().Origin() == "shared segment" {
		t.Errorf("%v, %v", x, err)
	}
	if _, err = (&Group{engine: fullArena{}}).NewTensor(tensor.Float32, -1); cohort.CodeOf(err) != cohort.InvalidArgument {
		t.Errorf("a negative dimension: %v", err)
	}
}
