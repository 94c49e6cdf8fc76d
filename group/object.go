// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/tensor"
)

// The object collectives move byte strings of any length. PyTorch's ranks put pickles into them; here they are data:
// nothing is imported or called. The message pattern is PyTorch's, so that Go and Python ranks can mix. Each consists of several
// collectives: if ctx ends before this rank has posted the last one, the group ends.

// MaxObject bounds one object that another rank announces.
const MaxObject = 1 << 31

// parted is a call that consists of several operations. The other ranks go through all of them. A rank whose ctx ends before it has
// posted the last one would be out of step, and its next operation would meet what is left of this call: the group ends instead.
type parted struct {
	*Group
	name  string
	left  int // operations that were not posted
	begun bool
}

// posts notes an operation that was posted, or was refused.
func (p *parted) posts(w *Work) *Work {
	if w.group != nil {
		p.begun, p.left = true, p.left-1
	}
	return w
}

// wait waits for an operation.
func (p *parted) wait(ctx context.Context, w *Work) error {
	err := w.Wait(ctx)
	if err == nil || ctx.Err() == nil || !p.begun || p.left == 0 {
		return err
	}
	if w.op.p2p() && w.group != nil && w.message.withdraw(p.mesh, cohort.Wrap(p.name, cohort.Canceled, err)) && !w.Success() {
		return err // it is the first message, and the other rank has seen nothing of it
	}
	reason := cohort.Newf(p.name, cohort.Aborted,
		"rank %d's context ended during the operation; the ranks are no longer in sync: %w", p.rank, err)
	reason.Rank = p.rank
	p.fail(reason)
	return err
}

// total adds up announced sizes before memory is taken for them. Wrong ones fail the group: the next operation cannot fit what the
// other ranks do.
func (p *parted) total(from cohort.Rank, sizes ...int64) (int, error) {
	n, err := collective.Announced(p.name, from, sizes, MaxObject)
	if err != nil {
		p.fail(err)
	}
	return n, err
}

// BroadcastObjects sends the objects of rank root to all ranks. objects has the same length everywhere; the content is
// replaced on the other ranks. It corresponds to torch.distributed.broadcast_object_list.
func (g *Group) BroadcastObjects(ctx context.Context, objects [][]byte, root cohort.Rank, opts ...OpOption) error {
	if g == nil {
		return errNil
	}
	p := parted{Group: g, name: "group: broadcast_object_list", left: 2}
	if err := g.args.CheckRoot(p.name, root); err != nil {
		return err
	}
	if len(objects) == 0 {
		return cohort.New(p.name, cohort.InvalidArgument, "no objects")
	}
	sizes := make([]int64, len(objects))
	if g.rank == root {
		for i, o := range objects {
			sizes[i] = int64(len(o))
		}
	}
	if err := p.wait(ctx, p.posts(g.Broadcast(ctx, tensor.Must(tensor.From(sizes, len(sizes))), root, opts...))); err != nil {
		return err
	}
	total, err := p.total(root, sizes...)
	if err != nil {
		return err
	}
	data := make([]byte, total)
	if g.rank == root {
		copy(data, slices.Concat(objects...))
	}
	if err := p.wait(ctx, p.posts(g.Broadcast(ctx, tensor.Must(tensor.From(data, len(data))), root, opts...))); err != nil {
		return err
	}
	if g.rank != root {
		collective.Cut(objects, data, sizes)
	}
	return nil
}

// exchangeSizes sends all ranks the size of everybody's object and returns the sizes and the largest one.
func (p *parted) exchangeSizes(ctx context.Context, own int, opts []OpOption) ([]int64, int, error) {
	if int64(own) > MaxObject {
		return nil, 0, cohort.Newf(p.name, cohort.TooLarge, "the object has %d bytes, at most %d are taken", own, int64(MaxObject))
	}
	sizes := make([]int64, p.Size())
	in := tensor.Must(tensor.From([]int64{int64(own)}))
	if err := p.wait(ctx, p.posts(p.AllGather(ctx, parts(sizes, p.Size()), in, opts...))); err != nil {
		return nil, 0, err
	}
	largest := 0
	for r, n := range sizes {
		if _, err := p.total(cohort.Rank(r), n); err != nil {
			return nil, 0, err
		}
		largest = max(largest, int(n))
	}
	return sizes, largest, nil
}

// AllGatherObject collects the objects of all ranks. It corresponds to torch.distributed.all_gather_object.
func (g *Group) AllGatherObject(ctx context.Context, object []byte, opts ...OpOption) ([][]byte, error) {
	if g == nil {
		return nil, errNil
	}
	p := parted{Group: g, name: "group: all_gather_object", left: 2}
	sizes, largest, err := p.exchangeSizes(ctx, len(object), opts)
	if err != nil {
		return nil, err
	}
	if largest == 0 {
		return make([][]byte, g.size), nil // no pickle is empty, so PyTorch ranks are not in this case
	}
	all := make([]byte, largest*g.size)
	in := tensor.Must(tensor.From(collective.Padded(object, largest)))
	if err := p.wait(ctx, p.posts(g.AllGather(ctx, parts(all, g.size), in, opts...))); err != nil {
		return nil, err
	}
	return collective.Unpad(all, largest, sizes), nil
}

// GatherObject collects the objects of all ranks at rank root; other ranks get nil. It corresponds to
// torch.distributed.gather_object.
func (g *Group) GatherObject(ctx context.Context, object []byte, root cohort.Rank, opts ...OpOption) ([][]byte, error) {
	if g == nil {
		return nil, errNil
	}
	p := parted{Group: g, name: "group: gather_object", left: 2}
	if err := g.args.CheckRoot(p.name, root); err != nil {
		return nil, err
	}
	sizes, largest, err := p.exchangeSizes(ctx, len(object), opts)
	if err != nil {
		return nil, err
	}
	var outs []*tensor.Tensor
	var all []byte
	if g.rank == root {
		all = make([]byte, largest*g.size)
		outs = parts(all, g.size)
	}
	in := tensor.Must(tensor.From(collective.Padded(object, largest)))
	if err := p.wait(ctx, p.posts(g.Gather(ctx, outs, in, root, opts...))); err != nil {
		return nil, err
	}
	if g.rank != root {
		return nil, nil
	}
	return collective.Unpad(all, largest, sizes), nil
}

// ScatterObjects sends objects[i] of rank root to rank i and returns this rank's object; other ranks pass nil. It
// corresponds to torch.distributed.scatter_object_list.
func (g *Group) ScatterObjects(ctx context.Context, objects [][]byte, root cohort.Rank, opts ...OpOption) ([]byte, error) {
	if g == nil {
		return nil, errNil
	}
	p := parted{Group: g, name: "group: scatter_object_list", left: 3}
	if err := g.args.CheckRoot(p.name, root); err != nil {
		return nil, err
	}
	if g.rank == root && len(objects) != g.size {
		return nil, cohort.Newf(p.name, cohort.InvalidArgument, "%d objects for %d ranks", len(objects), g.size)
	}
	// PyTorch: the largest size to all, then the padded objects, then everybody's own size.
	largest := []int64{0}
	if g.rank == root {
		for _, o := range objects {
			largest[0] = max(largest[0], int64(len(o)))
		}
	}
	if err := p.wait(ctx, p.posts(g.Broadcast(ctx, tensor.Must(tensor.From(largest)), root, opts...))); err != nil {
		return nil, err
	}
	n, err := p.total(root, largest...)
	if err != nil {
		return nil, err
	}
	var padded, sizes []*tensor.Tensor
	if g.rank == root {
		for _, o := range objects {
			padded = append(padded, tensor.Must(tensor.From(collective.Padded(o, n))))
			sizes = append(sizes, tensor.Must(tensor.From([]int64{int64(len(o))})))
		}
	}
	out, size := make([]byte, n), []int64{0}
	if err := p.wait(ctx, p.posts(g.Scatter(ctx, tensor.Must(tensor.From(out)), padded, root, opts...))); err != nil {
		return nil, err
	}
	if err := p.wait(ctx, p.posts(g.Scatter(ctx, tensor.Must(tensor.From(size)), sizes, root, opts...))); err != nil {
		return nil, err
	}
	if size[0] < 0 || size[0] > largest[0] {
		err := cohort.Newf(p.name, cohort.Protocol, "rank %d sent an object of %d bytes after it announced at most %d", root,
			size[0], largest[0])
		g.fail(err)
		return nil, err
	}
	return out[:size[0]], nil
}

// SendObjects sends objects to a rank, which must take as many with [Group.RecvObjects]. It returns when the objects may be
// modified again.
//
// It corresponds to torch.distributed.send_object_list.
func (g *Group) SendObjects(ctx context.Context, objects [][]byte, to cohort.Rank, opts ...OpOption) error {
	if g == nil {
		return errNil
	}
	p := parted{Group: g, name: "group: send_object_list", left: 2}
	if len(objects) == 0 {
		return cohort.New(p.name, cohort.InvalidArgument, "no objects")
	}
	sizes := make([]int64, len(objects))
	total := 0
	for i, o := range objects {
		sizes[i] = int64(len(o))
		total += len(o)
	}
	if int64(total) > MaxObject {
		return cohort.Newf(p.name, cohort.TooLarge, "the objects have %d bytes, at most %d are taken", total, int64(MaxObject))
	}
	if err := p.wait(ctx, p.posts(g.Send(ctx, tensor.Must(tensor.From(sizes)), to, 0, opts...))); err != nil {
		return err
	}
	return p.wait(ctx, p.posts(g.Send(ctx, tensor.Must(tensor.From(slices.Concat(objects...), total)), to, 0, opts...)))
}

// RecvObjects fills objects with those that a rank sends with [Group.SendObjects], or any rank if from is [cohort.NoRank], and
// returns who it was.
//
// It corresponds to torch.distributed.recv_object_list.
func (g *Group) RecvObjects(ctx context.Context, objects [][]byte, from cohort.Rank, opts ...OpOption) (cohort.Rank, error) {
	if g == nil {
		return cohort.NoRank, errNil
	}
	p := parted{Group: g, name: "group: recv_object_list", left: 2}
	if len(objects) == 0 {
		return cohort.NoRank, cohort.New(p.name, cohort.InvalidArgument, "no objects")
	}
	sizes := make([]int64, len(objects))
	room := tensor.Must(tensor.From(sizes))
	if from == cohort.NoRank {
		w := p.posts(g.RecvAny(ctx, room, 0, opts...))
		err := p.wait(ctx, w)
		if err == nil {
			from, err = w.SourceRank()
		}
		if err != nil {
			return cohort.NoRank, err
		}
	} else if err := p.wait(ctx, p.posts(g.Recv(ctx, room, from, 0, opts...))); err != nil {
		return cohort.NoRank, err
	}
	total, err := collective.Announced(p.name, from, sizes, MaxObject)
	if err != nil {
		return cohort.NoRank, err
	}
	data := make([]byte, total)
	if err := p.wait(ctx, p.posts(g.Recv(ctx, tensor.Must(tensor.From(data, len(data))), from, 0, opts...))); err != nil {
		return cohort.NoRank, err
	}
	collective.Cut(objects, data, sizes)
	return from, nil
}
