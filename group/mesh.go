// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo/torch"
)

// Axis is a dimension of a [Mesh].
type Axis struct {
	Name string
	Size int
}

// Mesh arranges the ranks of a world in a grid with named dimensions, such as data parallelism and tensor parallelism,
// and has a group for every row: the ranks that differ in only one coordinate. The last dimension runs fastest: in a mesh
// of {"dp", 2} and {"tp", 3}, ranks 0, 1 and 2 are a row of "tp", and ranks 0 and 3 one of "dp".
//
// It corresponds to torch.distributed.device_mesh.DeviceMesh.
type Mesh struct {
	world  *Group
	axes   []Axis
	groups []*Group    // of this rank's rows, by dimension
	at     []int       // this rank's coordinates
	grid   []dist.Rank // world ranks, the last dimension fastest
	owned  []*Group    // made for this mesh
}

// NewMesh makes a mesh of all ranks of the world. All of them call it, with the same axes. The options are those of the groups.
//
// It corresponds to torch.distributed.device_mesh.init_device_mesh("cpu", ...): PyTorch ranks of one world can call that.
func (g *Group) NewMesh(ctx context.Context, axes []Axis, opts ...Option) (*Mesh, error) {
	const op = "group: new mesh"
	if g.size != len(g.lineage.family.world) {
		return nil, dist.New(op, dist.InvalidArgument, "a mesh is made of the group of the whole world")
	}
	total := 1
	for i, a := range axes {
		switch {
		case a.Size < 1:
			return nil, dist.Newf(op, dist.InvalidArgument, "dimension %q has size %d", a.Name, a.Size)
		case a.Name == "" || slices.ContainsFunc(axes[:i], func(b Axis) bool { return b.Name == a.Name }):
			return nil, dist.Newf(op, dist.InvalidArgument, "dimension %d is called %q: names must not be empty or used twice", i, a.Name)
		}
		total *= a.Size
	}
	if len(axes) == 0 || total != g.size {
		return nil, dist.Newf(op, dist.InvalidArgument, "a mesh of %d ranks for a world of %d", total, g.size)
	}
	m := &Mesh{world: g, axes: slices.Clone(axes), grid: make([]dist.Rank, total), at: make([]int, len(axes))}
	for i := range m.grid {
		m.grid[i] = dist.Rank(i)
	}
	for d, rest := len(axes)-1, int(g.rank); d >= 0; d-- {
		m.at[d], rest = rest%axes[d].Size, rest/axes[d].Size
	}
	plan, err := m.plan(op)
	if err != nil {
		return nil, err
	}
	m.groups = make([]*Group, len(axes))
	for d, axis := range m.axes {
		if plan[d] == nil {
			m.groups[d] = g
			continue
		}
		row, err := g.NewSubgroupsByEnumeration(ctx, plan[d], append([]Option{WithDescription("mesh_" + axis.Name)}, opts...)...)
		if err != nil {
			_ = m.Close()
			return nil, err
		}
		m.groups[d] = row
		m.owned = append(m.owned, row)
	}
	return m, nil
}

// plan lists the groups to make, for each dimension in the order in which all ranks make them; nil where the world's own group
// serves.
func (m *Mesh) plan(op string) ([][][]dist.Rank, error) {
	sizes := make([]int, len(m.axes))
	for i, a := range m.axes {
		sizes[i] = a.Size
	}
	first, last := torch.FirstFirst.Rows(sizes), torch.LastFirst.Rows(sizes)
	switch m.world.args.Peers.MeshOrder() {
	case torch.FirstFirst:
		return first, nil
	case torch.LastFirst:
		return last, nil
	case torch.AnyMeshOrder:
	}
	if !slices.EqualFunc(first, last, func(a, b [][]dist.Rank) bool { return slices.EqualFunc(a, b, slices.Equal) }) {
		return nil, dist.Newf(op, dist.NotSupported, "versions of PyTorch make the groups of this mesh in different orders, %s", m.world.args.Peers.Unsure())
	}
	return first, nil
}

func (m *Mesh) dimension(op, name string) (int, error) {
	d := slices.IndexFunc(m.axes, func(a Axis) bool { return a.Name == name })
	if d < 0 {
		return 0, dist.Newf("group: "+op, dist.InvalidArgument, "no dimension %q in %v", name, m)
	}
	return d, nil
}

// Group returns the group of this rank's row along a dimension. Its ranks are the coordinates.
//
// It corresponds to DeviceMesh.get_group.
func (m *Mesh) Group(name string) (*Group, error) {
	d, err := m.dimension("mesh group", name)
	if err != nil {
		return nil, err
	}
	return m.groups[d], nil
}

// Axes returns the dimensions. It corresponds to DeviceMesh.mesh_dim_names and DeviceMesh.shape.
func (m *Mesh) Axes() []Axis { return slices.Clone(m.axes) }

// Coordinates returns where this rank is, by dimension. It corresponds to DeviceMesh.get_coordinate; DeviceMesh.get_local_rank of
// one dimension is the rank in its group.
func (m *Mesh) Coordinates() []int { return slices.Clone(m.at) }

// Ranks returns the world ranks of the mesh, the last dimension fastest. It corresponds to DeviceMesh.mesh.
func (m *Mesh) Ranks() []dist.Rank { return slices.Clone(m.grid) }

// Slice returns the part of the mesh that this rank sees along some of the dimensions, in the order of the mesh: the ranks that
// have its other coordinates. The groups are those of m; closing it does nothing.
//
// It corresponds to DeviceMesh.__getitem__, such as mesh["dp", "tp"].
func (m *Mesh) Slice(names ...string) (*Mesh, error) {
	const op = "mesh slice"
	if len(names) == 0 {
		return nil, dist.New("group: "+op, dist.InvalidArgument, "no dimensions")
	}
	kept := make([]bool, len(m.axes))
	before := -1
	for _, name := range names {
		d, err := m.dimension(op, name)
		if err != nil {
			return nil, err
		}
		if d <= before {
			return nil, dist.Newf("group: "+op, dist.InvalidArgument, "the dimensions %q are not in the order of %v", names, m)
		}
		before, kept[d] = d, true
	}
	s := &Mesh{world: m.world}
	for d, a := range m.axes {
		if kept[d] {
			s.axes, s.groups, s.at = append(s.axes, a), append(s.groups, m.groups[d]), append(s.at, m.at[d])
		}
	}
	for i, rank := range m.grid {
		here := true
		for d, rest := len(m.axes)-1, i; d >= 0; d-- {
			here = here && (kept[d] || rest%m.axes[d].Size == m.at[d])
			rest /= m.axes[d].Size
		}
		if here {
			s.grid = append(s.grid, rank)
		}
	}
	return s, nil
}

// Close closes the groups made for the mesh.
func (m *Mesh) Close() error {
	var first error
	for _, g := range m.owned {
		if err := g.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// String describes the mesh.
func (m *Mesh) String() string {
	var b strings.Builder
	for i, a := range m.axes {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s=%d", a.Name, a.Size)
	}
	return "mesh(" + b.String() + ")"
}
