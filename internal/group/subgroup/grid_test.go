// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package subgroup_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/subgroup"
)

var axes = []subgroup.Axis{{"pp", 2}, {"dp", 3}, {"tp", 2}}

// The slices along some dimensions part the world: each rank is in its own, and all ranks of one see the same.
func TestSlicesPartTheWorld(t *testing.T) {
	for _, names := range [][]string{{"pp"}, {"dp"}, {"tp"}, {"pp", "dp"}, {"pp", "tp"}, {"dp", "tp"}, {"pp", "dp", "tp"}} {
		seen := map[string]int{}
		for rank := range 12 {
			g, err := subgroup.New("test", axes, rank, 12)
			if err != nil {
				t.Fatal(err)
			}
			part, kept, err := g.Slice("test", names...)
			if err != nil {
				t.Fatal(err)
			}
			own := 0
			for i, d := range kept {
				own = own*axes[d].Size + part.At[i]
			}
			if part.Ranks[own] != cohort.Rank(rank) {
				t.Errorf("%v: rank %d is not where %v says in %v", names, rank, part.At, part.Ranks)
			}
			seen[fmt.Sprint(part.Ranks)]++
		}
		for ranks, n := range seen {
			if n != len(strings.Fields(ranks)) {
				t.Errorf("%v: %d ranks see %s", names, n, ranks)
			}
		}
	}
}

func TestGrid(t *testing.T) {
	g, err := subgroup.New("test", axes, 9, 12)
	if err != nil || !slices.Equal(g.At, []int{1, 1, 1}) || g.String() != "mesh(pp=2, dp=3, tp=2)" ||
		!slices.Equal(g.Sizes(), []int{2, 3, 2}) {
		t.Errorf("%v %v %v %v", g.At, g.String(), g.Sizes(), err)
	}
	if part, _, err := g.Slice("test", "dp"); err != nil || !slices.Equal(part.Ranks, []cohort.Rank{7, 9, 11}) {
		t.Errorf("%v %v", part.Ranks, err)
	}
	for name, err := range map[string]error{
		"a mesh of 12 ranks for a world of 13": second(subgroup.New("test", axes, 0, 13)),
		"has size 0":                           second(subgroup.New("test", []subgroup.Axis{{"a", 0}}, 0, 1)),
		"used twice":                           second(subgroup.New("test", []subgroup.Axis{{"a", 1}, {"a", 1}}, 0, 1)),
		`no dimension "x"`:                     third(g.Slice("test", "x")),
		"not in the order":                     third(g.Slice("test", "tp", "pp")),
		"no dimensions":                        third(g.Slice("test")),
	} {
		if cohort.CodeOf(err) != cohort.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }
