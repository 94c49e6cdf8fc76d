// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/subgroup"
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
	grid   subgroup.Grid
	groups []*Group // of this rank's rows, by dimension
	owned  []*Group // made for this mesh
}

// NewMesh makes a mesh of all ranks of the world. All of them call it, with the same axes. The options are those of the groups.
//
// It corresponds to torch.distributed.device_mesh.init_device_mesh("cpu", ...): PyTorch ranks of one world can call that.
func (g *Group) NewMesh(ctx context.Context, axes []Axis, opts ...Option) (*Mesh, error) {
	if g == nil {
		return nil, errNil
	}
	const op = "group: new mesh"
	if g.size != len(g.lineage.family.world) {
		return nil, cohort.New(op, cohort.InvalidArgument, "a mesh is made of the group of the whole world")
	}
	dimensions := make([]subgroup.Axis, len(axes))
	for i, a := range axes {
		dimensions[i] = subgroup.Axis(a)
	}
	all, err := subgroup.New(op, dimensions, int(g.rank), g.size)
	if err != nil {
		return nil, err
	}
	m := &Mesh{world: g, grid: all}
	plan, err := m.plan(op)
	if err != nil {
		return nil, err
	}
	m.groups = make([]*Group, len(axes))
	for d, axis := range all.Axes {
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
func (m *Mesh) plan(op string) ([][][]cohort.Rank, error) {
	sizes := m.grid.Sizes()
	first, last := torchcaps.FirstFirst.Rows(sizes), torchcaps.LastFirst.Rows(sizes)
	switch m.world.args.Peers.MeshOrder() {
	case torchcaps.FirstFirst:
		return first, nil
	case torchcaps.LastFirst:
		return last, nil
	case torchcaps.AnyMeshOrder:
	}
	if !slices.EqualFunc(first, last, func(a, b [][]cohort.Rank) bool { return slices.EqualFunc(a, b, slices.Equal) }) {
		return nil, cohort.Newf(op, cohort.NotSupported,
			"versions of PyTorch make the groups of this mesh in different orders, %s", m.world.args.Peers.Unsure())
	}
	return first, nil
}

// Group returns the group of this rank's row along a dimension. Its ranks are the coordinates.
//
// It corresponds to DeviceMesh.get_group.
func (m *Mesh) Group(name string) (*Group, error) {
	d, err := m.grid.Dimension("group: mesh group", name)
	if err != nil {
		return nil, err
	}
	return m.groups[d], nil
}

// Axes returns the dimensions. It corresponds to DeviceMesh.mesh_dim_names and DeviceMesh.shape.
func (m *Mesh) Axes() []Axis {
	axes := make([]Axis, len(m.grid.Axes))
	for i, a := range m.grid.Axes {
		axes[i] = Axis(a)
	}
	return axes
}

// Coordinates returns where this rank is, by dimension. It corresponds to DeviceMesh.get_coordinate; DeviceMesh.get_local_rank of
// one dimension is the rank in its group.
func (m *Mesh) Coordinates() []int { return slices.Clone(m.grid.At) }

// Ranks returns the world ranks of the mesh, the last dimension fastest. It corresponds to DeviceMesh.mesh.
func (m *Mesh) Ranks() []cohort.Rank { return slices.Clone(m.grid.Ranks) }

// Slice returns the part of the mesh that this rank sees along some of the dimensions, in the order of the mesh: the ranks that
// have its other coordinates. The groups are those of m; closing it does nothing.
//
// It corresponds to DeviceMesh.__getitem__, such as mesh["dp", "tp"].
func (m *Mesh) Slice(names ...string) (*Mesh, error) {
	part, kept, err := m.grid.Slice("group: mesh slice", names...)
	if err != nil {
		return nil, err
	}
	s := &Mesh{world: m.world, grid: part}
	for _, d := range kept {
		s.groups = append(s.groups, m.groups[d])
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
func (m *Mesh) String() string { return m.grid.String() }
