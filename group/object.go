// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/tensor"
)

// The object collectives move byte strings of any length. PyTorch's ranks put pickles into them; here they are data:
// nothing is imported or called. The message pattern is PyTorch's, so that Go and Python ranks can mix.

// MaxObject bounds one object that another rank announces.
const MaxObject = 1 << 31

// BroadcastObjects sends the objects of rank root to all ranks. objects has the same length everywhere; the content is
// replaced on the other ranks. It corresponds to torch.distributed.broadcast_object_list.
func (g *Group) BroadcastObjects(ctx context.Context, objects [][]byte, root dist.Rank, opts ...OpOption) error {
	const name = "group: broadcast_object_list"
	if err := g.args.CheckRoot(name, root); err != nil {
		return err
	}
	if len(objects) == 0 {
		return dist.New(name, dist.InvalidArgument, "no objects")
	}
	sizes := make([]int64, len(objects))
	if g.rank == root {
		for i, o := range objects {
			sizes[i] = int64(len(o))
		}
	}
	if err := g.Broadcast(ctx, tensor.Must(tensor.From(sizes, len(sizes))), root, opts...).Wait(ctx); err != nil {
		return err
	}
	total, err := g.totalSize(name, root, sizes)
	if err != nil {
		return err
	}
	data := make([]byte, total)
	if g.rank == root {
		copy(data, slices.Concat(objects...))
	}
	if err := g.Broadcast(ctx, tensor.Must(tensor.From(data, len(data))), root, opts...).Wait(ctx); err != nil {
		return err
	}
	if g.rank != root {
		share(objects, data, sizes)
	}
	return nil
}

// totalSize checks announced sizes before memory is taken for them. Wrong ones fail the group: the next operation cannot
// fit what the other ranks do.
func (g *Group) totalSize(name string, from dist.Rank, sizes []int64) (int, error) {
	total, err := announced(name, from, sizes)
	if err != nil {
		g.fail(err)
	}
	return total, err
}

// announced adds up the sizes of the objects of a rank, and refuses what is more than any memory should be taken for.
func announced(name string, from dist.Rank, sizes []int64) (int, error) {
	total := int64(0)
	for _, n := range sizes {
		if n < 0 || n > MaxObject || total+n > MaxObject {
			err := dist.Newf(name, dist.TooLarge, "rank %d announces an object of %d bytes, at most %d are taken", from, n, int64(MaxObject))
			err.Rank = from
			return 0, err
		}
		total += n
	}
	return int(total), nil
}

// exchangeSizes tells all ranks the size of everybody's object and returns the sizes and the largest one.
func (g *Group) exchangeSizes(ctx context.Context, name string, own int, opts []OpOption) ([]int64, int, error) {
	if int64(own) > MaxObject {
		return nil, 0, dist.Newf(name, dist.TooLarge, "the object has %d bytes, at most %d are taken", own, int64(MaxObject))
	}
	sizes := make([]int64, g.size)
	in := tensor.Must(tensor.From([]int64{int64(own)}, 1))
	if err := g.AllGather(ctx, parts(sizes, g.size), in, opts...).Wait(ctx); err != nil {
		return nil, 0, err
	}
	largest := 0
	for r, n := range sizes {
		if _, err := g.totalSize(name, dist.Rank(r), []int64{n}); err != nil {
			return nil, 0, err
		}
		largest = max(largest, int(n))
	}
	return sizes, largest, nil
}

// AllGatherObject collects the objects of all ranks. It corresponds to torch.distributed.all_gather_object.
func (g *Group) AllGatherObject(ctx context.Context, object []byte, opts ...OpOption) ([][]byte, error) {
	const name = "group: all_gather_object"
	sizes, largest, err := g.exchangeSizes(ctx, name, len(object), opts)
	if err != nil {
		return nil, err
	}
	if largest == 0 {
		return make([][]byte, g.size), nil // no pickle is empty, so PyTorch ranks are not in this case
	}
	all := make([]byte, largest*g.size)
	in := make([]byte, largest)
	copy(in, object)
	if err := g.AllGather(ctx, parts(all, g.size), tensor.Must(tensor.From(in, largest)), opts...).Wait(ctx); err != nil {
		return nil, err
	}
	return cut(all, largest, sizes), nil
}

func cut(all []byte, stride int, sizes []int64) [][]byte {
	objects := make([][]byte, len(sizes))
	for i, n := range sizes {
		at := i * stride
		objects[i] = all[at : at+int(n) : at+int(n)]
	}
	return objects
}

// GatherObject collects the objects of all ranks at rank root; other ranks get nil. It corresponds to
// torch.distributed.gather_object.
func (g *Group) GatherObject(ctx context.Context, object []byte, root dist.Rank, opts ...OpOption) ([][]byte, error) {
	const name = "group: gather_object"
	if err := g.args.CheckRoot(name, root); err != nil {
		return nil, err
	}
	sizes, largest, err := g.exchangeSizes(ctx, name, len(object), opts)
	if err != nil {
		return nil, err
	}
	in := make([]byte, largest)
	copy(in, object)
	var outs []*tensor.Tensor
	var all []byte
	if g.rank == root {
		all = make([]byte, largest*g.size)
		outs = parts(all, g.size)
	}
	if err := g.Gather(ctx, outs, tensor.Must(tensor.From(in, largest)), root, opts...).Wait(ctx); err != nil {
		return nil, err
	}
	if g.rank != root {
		return nil, nil
	}
	return cut(all, largest, sizes), nil
}

// ScatterObjects sends objects[i] of rank root to rank i and returns this rank's object; other ranks pass nil. It
// corresponds to torch.distributed.scatter_object_list.
func (g *Group) ScatterObjects(ctx context.Context, objects [][]byte, root dist.Rank, opts ...OpOption) ([]byte, error) {
	const name = "group: scatter_object_list"
	if err := g.args.CheckRoot(name, root); err != nil {
		return nil, err
	}
	if g.rank == root && len(objects) != g.size {
		return nil, dist.Newf(name, dist.InvalidArgument, "%d objects for %d ranks", len(objects), g.size)
	}
	// PyTorch: the largest size to all, then the padded objects, then everybody's own size.
	largest := []int64{0}
	if g.rank == root {
		for _, o := range objects {
			largest[0] = max(largest[0], int64(len(o)))
		}
	}
	if err := g.Broadcast(ctx, tensor.Must(tensor.From(largest, 1)), root, opts...).Wait(ctx); err != nil {
		return nil, err
	}
	if _, err := g.totalSize(name, root, largest); err != nil {
		return nil, err
	}
	n := int(largest[0])
	var padded, sizes []*tensor.Tensor
	if g.rank == root {
		for _, o := range objects {
			b := make([]byte, n)
			copy(b, o)
			padded = append(padded, tensor.Must(tensor.From(b, n)))
			sizes = append(sizes, tensor.Must(tensor.From([]int64{int64(len(o))}, 1)))
		}
	}
	out, size := make([]byte, n), []int64{0}
	if err := g.Scatter(ctx, tensor.Must(tensor.From(out, n)), padded, root, opts...).Wait(ctx); err != nil {
		return nil, err
	}
	if err := g.Scatter(ctx, tensor.Must(tensor.From(size, 1)), sizes, root, opts...).Wait(ctx); err != nil {
		return nil, err
	}
	if size[0] < 0 || size[0] > largest[0] {
		err := dist.Newf(name, dist.Protocol, "rank %d sent an object of %d bytes after it announced at most %d", root, size[0], largest[0])
		g.fail(err)
		return nil, err
	}
	return out[:size[0]], nil
}

// SendObjects sends objects to a rank, which must take as many with [Group.RecvObjects]. It returns when the objects may be
// modified again.
//
// It corresponds to torch.distributed.send_object_list.
func (g *Group) SendObjects(ctx context.Context, objects [][]byte, to dist.Rank, opts ...OpOption) error {
	const name = "group: send_object_list"
	if len(objects) == 0 {
		return dist.New(name, dist.InvalidArgument, "no objects")
	}
	sizes := make([]int64, len(objects))
	total := 0
	for i, o := range objects {
		sizes[i] = int64(len(o))
		total += len(o)
	}
	if int64(total) > MaxObject {
		return dist.Newf(name, dist.TooLarge, "the objects have %d bytes, at most %d are taken", total, int64(MaxObject))
	}
	if err := g.Send(ctx, tensor.Must(tensor.From(sizes, len(sizes))), to, 0, opts...).Wait(ctx); err != nil {
		return err
	}
	data := slices.Concat(objects...)
	return g.Send(ctx, tensor.Must(tensor.From(data, total)), to, 0, opts...).Wait(ctx)
}

// RecvObjects fills objects with those that a rank sends with [Group.SendObjects], or any rank if from is [dist.NoRank], and
// returns who it was.
//
// It corresponds to torch.distributed.recv_object_list.
func (g *Group) RecvObjects(ctx context.Context, objects [][]byte, from dist.Rank, opts ...OpOption) (dist.Rank, error) {
	const name = "group: recv_object_list"
	if len(objects) == 0 {
		return dist.NoRank, dist.New(name, dist.InvalidArgument, "no objects")
	}
	sizes := make([]int64, len(objects))
	room := tensor.Must(tensor.From(sizes, len(sizes)))
	if from == dist.NoRank {
		w := g.RecvAny(ctx, room, 0, opts...)
		err := w.Wait(ctx)
		if err == nil {
			from, err = w.SourceRank()
		}
		if err != nil {
			return dist.NoRank, err
		}
	} else if err := g.Recv(ctx, room, from, 0, opts...).Wait(ctx); err != nil {
		return dist.NoRank, err
	}
	total, err := announced(name, from, sizes)
	if err != nil {
		return dist.NoRank, err
	}
	data := make([]byte, total)
	if err := g.Recv(ctx, tensor.Must(tensor.From(data, len(data))), from, 0, opts...).Wait(ctx); err != nil {
		return dist.NoRank, err
	}
	share(objects, data, sizes)
	return from, nil
}

// share cuts data into objects of the given sizes.
func share(objects [][]byte, data []byte, sizes []int64) {
	for i, n := range sizes {
		objects[i] = data[:n:n]
		data = data[n:]
	}
}
