// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// meshStep makes a mesh of the sizes in Ranks, with dimensions a, b and so on, and says where this rank is.
func meshStep(ctx context.Context, g *group.Group, groups map[string]*group.Group, s step) (string, error) {
	var axes []group.Axis
	for i, n := range s.Ranks {
		axes = append(axes, group.Axis{Name: string(rune('a' + i)), Size: n})
	}
	m, err := g.NewMesh(ctx, axes)
	if err != nil {
		return "", err
	}
	for _, a := range axes {
		if groups[s.Name+a.Name], err = m.Group(a.Name); err != nil {
			return "", err
		}
	}
	return strings.ReplaceAll(fmt.Sprint(m.Coordinates()), " ", ", "), nil
}

// TestMesh makes device meshes with PyTorch ranks, whose versions make the groups in different orders.
func TestMesh(t *testing.T) {
	test := func(t *testing.T, tr *torchtest.Torch) {
		for _, sizes := range [][]int{{4}, {2, 2}, {4, 1}, {2, 1, 2}, {2, 2, 2}} {
			size := 1
			for _, n := range sizes {
				size *= n
			}
			plan := []step{{Op: "mesh", Name: "m", Ranks: sizes}}
			for i := range sizes {
				plan = append(plan, step{Op: "all_reduce", N: 3, DType: "float32", Group: "m" + string(rune('a'+i))})
			}
			plan = append(plan, step{Op: "new_group", Name: "later", Ranks: []int{0, 3}},
				step{Op: "all_gather", N: 3, DType: "float32", Group: "later"})
			if tr == torchtest.Newest {
				plan = append(plan, step{Op: "new_group", Name: "order", Ranks: []int{3, 0, 2}, Order: true},
					step{Op: "all_gather", N: 3, DType: "float32", Group: "order"},
					step{Op: "broadcast", N: 3, DType: "float32", Group: "order", Ranks: []int{3, 0, 2}})
			}
			want := world{size: size}.run(t, tr, plan)
			for _, goRanks := range [][]int{{0}, {1, 3}} {
				w := world{size: size, goRanks: goRanks}
				t.Run(fmt.Sprintf("%v,%v", sizes, w), func(t *testing.T) { compare(t, plan, want, w.run(t, tr, plan)) })
			}
		}
	}
	t.Run("torch-2.6", func(t *testing.T) {
		torchtest.V26.Need(t)
		test(t, torchtest.V26)
	})
	t.Run("torch-newest", func(t *testing.T) {
		torchtest.Newest.Need(t)
		test(t, torchtest.Newest)
	})
}
