// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package subgroup is the geometry of a device mesh: the ranks of a world in a grid with named dimensions, as one of them sees it.
package subgroup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
)

// Axis is a dimension.
type Axis struct {
	Name string
	Size int
}

// Grid has ranks in rows and columns. The last dimension runs fastest. The zero value has none.
type Grid struct {
	Axes  []Axis
	At    []int         // the coordinates of the rank that sees it
	Ranks []cohort.Rank // all of them
}

// New returns the grid of a world of so many ranks as one of them sees it.
func New(op string, axes []Axis, rank, size int) (Grid, error) {
	total := 1
	for i, a := range axes {
		switch {
		case a.Size < 1:
			return Grid{}, cohort.Newf(op, cohort.InvalidArgument, "dimension %q has size %d", a.Name, a.Size)
		case a.Name == "" || slices.ContainsFunc(axes[:i], func(b Axis) bool { return b.Name == a.Name }):
			return Grid{}, cohort.Newf(op, cohort.InvalidArgument,
				"dimension %d is called %q: names must not be empty or used twice", i, a.Name)
		}
		total *= a.Size
	}
	if len(axes) == 0 || total != size {
		return Grid{}, cohort.Newf(op, cohort.InvalidArgument, "a mesh of %d ranks for a world of %d", total, size)
	}
	g := Grid{Axes: axes, Ranks: make([]cohort.Rank, size)}
	for i := range g.Ranks {
		g.Ranks[i] = cohort.Rank(i)
	}
	g.At = g.coordinates(rank)
	return g, nil
}

// coordinates are where the rank of this number in the grid is.
func (g *Grid) coordinates(i int) []int {
	at := make([]int, len(g.Axes))
	for d := len(g.Axes) - 1; d >= 0; d-- {
		at[d], i = i%g.Axes[d].Size, i/g.Axes[d].Size
	}
	return at
}

// Sizes are the sizes of the dimensions.
func (g *Grid) Sizes() []int {
	sizes := make([]int, len(g.Axes))
	for d, a := range g.Axes {
		sizes[d] = a.Size
	}
	return sizes
}

// Dimension returns the number of a dimension.
func (g *Grid) Dimension(op, name string) (int, error) {
	d := slices.IndexFunc(g.Axes, func(a Axis) bool { return a.Name == name })
	if d < 0 {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "no dimension %q in %v", name, g)
	}
	return d, nil
}

// Slice returns the ranks with the same coordinates in all but some dimensions, which are named in the order of the
// grid, and the numbers of these dimensions.
func (g *Grid) Slice(op string, names ...string) (Grid, []int, error) {
	if len(names) == 0 {
		return Grid{}, nil, cohort.New(op, cohort.InvalidArgument, "no dimensions")
	}
	var kept []int
	part := Grid{}
	for _, name := range names {
		d, err := g.Dimension(op, name)
		if err != nil {
			return Grid{}, nil, err
		}
		if len(kept) > 0 && d <= kept[len(kept)-1] {
			return Grid{}, nil, cohort.Newf(op, cohort.InvalidArgument, "the dimensions %q are not in the order of %v", names, g)
		}
		kept = append(kept, d)
		part.Axes, part.At = append(part.Axes, g.Axes[d]), append(part.At, g.At[d])
	}
	for i, rank := range g.Ranks {
		at := g.coordinates(i)
		for _, d := range kept {
			at[d] = g.At[d]
		}
		if slices.Equal(at, g.At) {
			part.Ranks = append(part.Ranks, rank)
		}
	}
	return part, kept, nil
}

// String names the dimensions and their sizes.
func (g *Grid) String() string {
	var b strings.Builder
	for i, a := range g.Axes {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s=%d", a.Name, a.Size)
	}
	return "mesh(" + b.String() + ")"
}
