// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// The functions in this file do the common operations on plain Go slices and wait for them. Slices are used in place.

// onSlice posts an operation on a slice as a tensor and waits for it.
func onSlice[T tensor.Element](ctx context.Context, data []T, post func(t *tensor.Tensor) *Work) error {
	t, err := tensor.From(data, len(data))
	if err != nil {
		return err
	}
	return post(t).Wait(ctx)
}

// fromSlice posts an operation from one slice into another, waits for it and returns the other one.
func fromSlice[T tensor.Element](ctx context.Context, got, data []T, post func(out, in *tensor.Tensor) *Work) ([]T, error) {
	out, err := tensor.From(got, len(got))
	if err != nil {
		return nil, err
	}
	return got, onSlice(ctx, data, func(in *tensor.Tensor) *Work { return post(out, in) })
}

// AllReduceSlice combines data over all ranks in place; see [Group.AllReduce].
func AllReduceSlice[T tensor.Element](ctx context.Context, g *Group, data []T, op ReduceOp, opts ...OpOption) error {
	return onSlice(ctx, data, func(t *tensor.Tensor) *Work { return g.AllReduce(ctx, t, op, awaited(opts)...) })
}

// ReduceSlice combines data over all ranks into root's data; see [Group.Reduce].
func ReduceSlice[T tensor.Element](ctx context.Context, g *Group, data []T, op ReduceOp, root cohort.Rank, opts ...OpOption) error {
	return onSlice(ctx, data, func(t *tensor.Tensor) *Work { return g.Reduce(ctx, t, op, root, awaited(opts)...) })
}

// BroadcastSlice sends root's data to all ranks; see [Group.Broadcast].
func BroadcastSlice[T tensor.Element](ctx context.Context, g *Group, data []T, root cohort.Rank, opts ...OpOption) error {
	return onSlice(ctx, data, func(t *tensor.Tensor) *Work { return g.Broadcast(ctx, t, root, awaited(opts)...) })
}

// AllGatherSlice returns the data of all ranks, one after another; see [Group.AllGather]. All ranks give the same number
// of elements. PyTorch's ranks call torch.distributed.all_gather.
func AllGatherSlice[T tensor.Element](ctx context.Context, g *Group, data []T, opts ...OpOption) ([]T, error) {
	return fromSlice(ctx, make([]T, len(data)*g.Size()), data,
		func(out, in *tensor.Tensor) *Work { return g.allGatherInto(ctx, OpAllGather, out, in, awaited(opts)) })
}

// GatherSlice returns the data of all ranks, one after another, on rank root, and nil elsewhere; see [Group.Gather]. All
// ranks give the same number of elements.
func GatherSlice[T tensor.Element](ctx context.Context, g *Group, data []T, root cohort.Rank, opts ...OpOption) ([]T, error) {
	in, err := tensor.From(data, len(data))
	if err != nil {
		return nil, err
	}
	if g.Rank() != root {
		return nil, g.Gather(ctx, nil, in, root, awaited(opts)...).Wait(ctx)
	}
	all := make([]T, len(data)*g.Size())
	return all, g.Gather(ctx, parts(all, g.Size()), in, root, awaited(opts)...).Wait(ctx)
}

// ScatterSlice sends the i-th of equal parts of rank root's all to rank i, into part; see [Group.Scatter]. The other ranks give
// nil as all.
func ScatterSlice[T tensor.Element](ctx context.Context, g *Group, part, all []T, root cohort.Rank, opts ...OpOption) error {
	out, err := tensor.From(part, len(part))
	if err != nil {
		return err
	}
	var ins []*tensor.Tensor
	if g.Rank() == root {
		if len(all) != len(part)*g.Size() {
			return cohort.Newf("group: scatter", cohort.InvalidArgument, "%d elements for %d ranks with room for %d each",
				len(all), g.Size(), len(part))
		}
		ins = parts(all, g.Size())
	}
	return g.Scatter(ctx, out, ins, root, awaited(opts)...).Wait(ctx)
}

// parts cuts a slice into n tensors of one size. Its length is a multiple of n.
func parts[T tensor.Element](all []T, n int) []*tensor.Tensor {
	whole, list := tensor.Must(tensor.From(all, n, len(all)/n)), make([]*tensor.Tensor, n)
	for i := range list {
		list[i] = tensor.Must(whole.Select(0, i))
	}
	return list
}

// ReduceScatterSlice combines data over all ranks and returns this rank's part of the result; see
// [Group.ReduceScatterInto].
func ReduceScatterSlice[T tensor.Element](ctx context.Context, g *Group, data []T, op ReduceOp, opts ...OpOption) ([]T, error) {
	return fromSlice(ctx, make([]T, len(data)/g.Size()), data,
		func(out, in *tensor.Tensor) *Work { return g.ReduceScatterInto(ctx, out, in, op, awaited(opts)...) })
}

// AllToAllSlice sends the i-th of equal parts of data to rank i and returns what the others sent; see [Group.AllToAllInto].
func AllToAllSlice[T tensor.Element](ctx context.Context, g *Group, data []T, opts ...OpOption) ([]T, error) {
	return fromSlice(ctx, make([]T, len(data)), data,
		func(out, in *tensor.Tensor) *Work { return g.AllToAllInto(ctx, out, in, nil, nil, awaited(opts)...) })
}

// SendSlice sends data to a rank; see [Group.Send].
func SendSlice[T tensor.Element](ctx context.Context, g *Group, data []T, to cohort.Rank, tag int, opts ...OpOption) error {
	return onSlice(ctx, data, func(t *tensor.Tensor) *Work { return g.Send(ctx, t, to, tag, awaited(opts)...) })
}

// RecvSlice receives into data from a rank; see [Group.Recv].
func RecvSlice[T tensor.Element](ctx context.Context, g *Group, data []T, from cohort.Rank, tag int, opts ...OpOption) error {
	return onSlice(ctx, data, func(t *tensor.Tensor) *Work { return g.Recv(ctx, t, from, tag, awaited(opts)...) })
}
