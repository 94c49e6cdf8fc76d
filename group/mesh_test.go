// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/subgroup"
)

// TestMesh runs a collective in every row of a mesh of three dimensions.
func TestMesh(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			groups := newWorld(t, 8, WithTransport(transport))
			must(t, each(8, func(r int) error {
				m, err := groups[r].NewMesh(ctx, []Axis{{"pp", 2}, {"dp", 2}, {"tp", 2}})
				if err != nil {
					return err
				}
				at := []int{r / 4, r / 2 % 2, r % 2}
				if !slices.Equal(m.Coordinates(), at) || m.String() != "mesh(pp=2, dp=2, tp=2)" || len(m.Ranks()) != 8 {
					return fmt.Errorf("%v at %v of %v", m, m.Coordinates(), m.Ranks())
				}
				for i, want := range []int64{int64(2*(r%4) + 4), int64(2*(r/4*4+r%2) + 2), int64(2*(r/2*2) + 1)} {
					name := m.Axes()[i].Name
					row, missing := m.Group(name)
					if missing != nil {
						return missing
					}
					x := from(int64(r))
					if bad := errors.Join(row.AllReduce(ctx, x, Sum).Wait(ctx), same(name, x, want)); bad != nil {
						return bad
					}
					if row.Rank() != cohort.Rank(at[i]) || row.Description() != "mesh_"+name {
						return fmt.Errorf("rank %d of %q at %v", row.Rank(), row.Description(), at)
					}
				}
				s, err := m.Slice("pp", "tp")
				if err != nil {
					return err
				}
				base := cohort.Rank(r / 2 % 2 * 2)
				if want := []cohort.Rank{base, base + 1, base + 4, base + 5}; !slices.Equal(s.Ranks(), want) ||
					!slices.Equal(s.Coordinates(), []int{at[0], at[2]}) || len(s.Axes()) != 2 {
					return fmt.Errorf("slice %v at %v of %v, want %v", s, s.Coordinates(), s.Ranks(), want)
				}
				a, _ := m.Group("tp")
				if b, err := s.Group("tp"); err != nil || a != b {
					return fmt.Errorf("the group of the slice is another one: %w", err)
				}
				if err := errors.Join(s.Close(), groups[r].Barrier(ctx).Wait(ctx)); err != nil {
					return err
				}
				if err := a.Barrier(ctx).Wait(ctx); err != nil { // a slice owns nothing
					return err
				}
				return errors.Join(groups[r].Barrier(ctx).Wait(ctx), m.Close())
			}))
			line := make([]*Mesh, 8)
			must(t, each(8, func(r int) (err error) {
				line[r], err = groups[r].NewMesh(ctx, []Axis{{"all", 8}})
				return err
			}))
			if g, err := line[0].Group("all"); err != nil || g != groups[0] {
				t.Errorf("a mesh of one dimension has another group than the world's: %v", err)
			}
			must(t, line[0].Close())
			must(t, groups[0].Err())
		})
	}
}

func TestMeshArguments(t *testing.T) {
	ctx := ctxOf(t)
	groups := newWorld(t, 2)
	for want, axes := range map[string][]Axis{
		"a mesh of 1 ranks": nil, "a mesh of 4 ranks": {{"a", 2}, {"b", 2}}, "has size 0": {{"a", 0}},
		"used twice": {{"a", 1}, {"a", 2}}, "empty": {{"", 2}},
	} {
		if _, err := groups[0].NewMesh(ctx, axes); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", axes, err)
		}
	}
	must(t, each(2, func(r int) error {
		m, err := groups[r].NewMesh(ctx, []Axis{{"a", 2}, {"b", 1}})
		if err != nil {
			return err
		}
		for _, names := range [][]string{nil, {"c"}, {"b", "a"}, {"a", "a"}} {
			if _, err := m.Slice(names...); !errors.Is(err, cohort.InvalidArgument) {
				return fmt.Errorf("slice %q: %w", names, err)
			}
		}
		if _, err := m.Group("c"); !errors.Is(err, cohort.InvalidArgument) {
			return err
		}
		sub, _ := m.Group("b")
		if _, err := sub.NewMesh(ctx, []Axis{{"a", 1}}); !errors.Is(err, cohort.InvalidArgument) {
			return err
		}
		return nil
	}))
	unsure := &Mesh{
		world: &Group{
			size: 8,
			args: collective.Group{Peers: torchcaps.Peers{Low: torchcaps.V2_6, High: torchcaps.V2_14}},
		},
		grid: subgroup.Grid{Axes: []subgroup.Axis{{Name: "a", Size: 2}, {Name: "b", Size: 2}, {Name: "c", Size: 2}}},
	}
	if _, err := unsure.plan("x"); !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), torchcaps.Option) {
		t.Errorf("an order that is not known: %v", err)
	}
	unsure.grid.Axes = []subgroup.Axis{{Name: "a", Size: 2}, {Name: "b", Size: 4}} // where it does not matter
	if _, err := unsure.plan("x"); err != nil {
		t.Error(err)
	}
}

// TestRankOrder numbers the ranks of a group as they are given.
func TestRankOrder(t *testing.T) {
	for _, transport := range transports {
		ctx := ctxOf(t)
		groups := newWorld(t, 3, WithTransport(transport))
		must(t, each(3, func(r int) error {
			for _, local := range []bool{false, true} {
				opts := []Option{WithRankOrder()}
				if local {
					opts = append(opts, WithLocalSync())
				}
				sub, err := groups[r].NewGroup(ctx, []cohort.Rank{2, 0, 1}, opts...)
				if err != nil {
					return err
				}
				if want := []cohort.Rank{2, 0, 1}; !slices.Equal(sub.GlobalRanks(), want) ||
					sub.GlobalRank(sub.Rank()) != cohort.Rank(r) || sub.GroupRank(2) != 0 {
					return fmt.Errorf("rank %d of %v", sub.Rank(), sub.GlobalRanks())
				}
				x := from(int64(r))
				if err = errors.Join(sub.Broadcast(ctx, x, 0).Wait(ctx), same[int64]("root", x, 2)); err != nil {
					return err
				}
				again, err := sub.NewGroup(ctx, []cohort.Rank{1, 0}, WithRankOrder()) // of its ranks: 0 and 2 of the world
				if err != nil || again == nil {
					if r == 1 && err == nil {
						continue
					}
					return fmt.Errorf("a group of the group: %w", err)
				}
				if want := []cohort.Rank{0, 2}; !slices.Equal(again.GlobalRanks(), want) {
					return fmt.Errorf("%v, want %v", again.GlobalRanks(), want)
				}
			}
			if _, err := groups[r].NewGroup(ctx, []cohort.Rank{1, 0, 1}, WithRankOrder()); !errors.Is(err, cohort.InvalidArgument) {
				return fmt.Errorf("a rank twice: %w", err)
			}
			return nil
		}))
	}
}
