// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// compare checks that all ranks have parameters of the same shapes: first their number, then rank 0's sizes and strides.
// PyTorch exchanges the same at its start.
func (m *Model) compare(ctx context.Context) error {
	const op = "ddp: new"
	counts, err := group.AllGatherSlice(ctx, m.g, []int64{int64(len(m.params))})
	if err != nil {
		return err
	}
	for rank, n := range counts {
		if n != int64(len(m.params)) {
			e := cohort.Newf(op, cohort.Mismatch,
				"DDP expects same model across all ranks, but rank %d has %d params, while rank %d has inconsistent %d params.",
				m.g.Rank(), len(m.params), rank, n)
			e.Rank = cohort.Rank(rank)
			return e
		}
	}
	var own []int64
	for _, p := range m.params {
		t := p.Value.Data()
		for _, list := range [][]int{t.Shape(), t.Strides()} {
			for _, n := range list {
				own = append(own, int64(n))
			}
		}
	}
	if len(own) == 0 { // only parameters without dimensions
		return nil
	}
	first := slices.Clone(own)
	if err := group.BroadcastSlice(ctx, m.g, first, 0); err != nil {
		return err
	}
	if slices.Equal(own, first) {
		return nil
	}
	at := 0
	for i, p := range m.params {
		n := 2 * p.Value.Dims()
		if !slices.Equal(own[at:at+n], first[at:at+n]) {
			e := cohort.Newf(op, cohort.Mismatch,
				"params[%d] (%s) in this process with sizes and strides %v appears not to match those of rank 0: %v", i, p.Name,
				own[at:at+n], first[at:at+n])
			e.Rank = 0
			return e
		}
		at += n
	}
	return nil
}

// takeFrom gives all ranks the tensors of one, many in one message.
func (m *Model) takeFrom(ctx context.Context, from cohort.Rank, all []*tensor.Tensor) error {
	pieces := make([]piece, len(all))
	for i, t := range all {
		pieces[i] = piece{dtype: t.DType(), bytes: t.NBytes()}
	}
	for _, indices := range assign(pieces, []int{group.BroadcastBucket}, nil) {
		var parts []*tensor.Tensor
		for _, i := range indices {
			flat, err := all[i].Reshape(-1)
			if err != nil {
				return err
			}
			parts = append(parts, flat)
		}
		flat, err := tensorops.Cat(parts, 0)
		if err != nil {
			return err
		}
		if err := m.g.Broadcast(ctx, flat, from).Wait(ctx); err != nil {
			return err
		}
		if m.g.Rank() == from {
			continue
		}
		at := 0
		for _, i := range indices {
			part, err := flat.Narrow(0, at, all[i].Numel())
			if err != nil {
				return err
			}
			if part, err = part.View(all[i].Shape()...); err != nil {
				return err
			}
			if err := all[i].CopyFrom(part); err != nil {
				return err
			}
			at += all[i].Numel()
		}
	}
	return nil
}

// agree takes over rank 0's buckets: all parameters one behind the other and the number of buckets, then their sizes.
func (m *Model) agree(ctx context.Context, buckets [][]int) ([][]int, error) {
	order := make([]int32, 0, len(m.params)+1)
	sizes := make([]int32, 0, len(buckets))
	for _, b := range buckets {
		for _, i := range b {
			order = append(order, int32(i)) //nolint:gosec // an index of a parameter
		}
		sizes = append(sizes, int32(len(b))) //nolint:gosec // a number of parameters
	}
	if len(order) != len(m.params) {
		return nil, cohort.Newf("ddp: forward", cohort.Internal, "%d of %d parameters are in buckets", len(order), len(m.params))
	}
	order = append(order, int32(len(buckets))) //nolint:gosec // fewer than parameters
	if err := group.BroadcastSlice(ctx, m.g, order, 0); err != nil {
		return nil, err
	}
	n := int(order[len(m.params)])
	if n < 1 || n > len(m.params) {
		return nil, cohort.Newf("ddp: forward", cohort.Protocol, "rank 0 has %d buckets for %d parameters", n, len(m.params))
	}
	sizes = append(sizes[:min(n, len(sizes)):min(n, len(sizes))], make([]int32, max(0, n-len(sizes)))...)
	if err := group.BroadcastSlice(ctx, m.g, sizes, 0); err != nil {
		return nil, err
	}
	return m.cut(order[:len(m.params)], sizes)
}

// cut checks what rank 0 sent: every parameter once, one element type per bucket, sparse gradients alone.
func (m *Model) cut(order, sizes []int32) ([][]int, error) {
	bad := func() error {
		return cohort.Newf("ddp: forward", cohort.Protocol, "rank 0 sent buckets of sizes %v with order %v", sizes, order)
	}
	seen := make([]bool, len(m.params))
	var out [][]int
	for _, size := range sizes {
		if size < 1 || int(size) > len(order) {
			return nil, bad()
		}
		var b []int
		for _, i := range order[:size] {
			if i < 0 || int(i) >= len(seen) || seen[i] || len(b) > 0 && m.pieces[i].dtype != m.pieces[b[0]].dtype ||
				size > 1 && m.pieces[i].sparse {
				return nil, bad()
			}
			seen[i] = true
			b = append(b, int(i))
		}
		order = order[size:]
		out = append(out, b)
	}
	if len(order) > 0 {
		return nil, bad()
	}
	return out, nil
}

// scaleInto sets dst to a gradient times a factor; no gradient is 0. PyTorch multiplies before it adds, and so must
// everybody.
func scaleInto(dst, grad *tensor.Tensor, factor float64) error {
	if grad == nil {
		return dst.Fill(0)
	}
	return tensorops.ScaleInto(dst, grad, factor)
}

// round is a forward whose gradients are to be reduced, from its announcement on, and the pass that does that.
type round struct {
	armed  bool   // it has been announced
	unused []int  // parameters that it did not use
	ready  []bool // by parameter: its gradient has come
	next   int    // the next bucket to be reduced: all ranks reduce in the same order
	began  time.Time
	// grads is where the pass has its gradients; elsewhere says that these are not the parameters' own.
	grads     autograd.Gradients
	elsewhere bool
	waitUsed  wait
}

// usage is which parameters passes use.
type usage struct {
	used        *tensor.Tensor // by how many ranks each was used in this pass, or in all of a static graph
	never       []int          // parameters that a static graph does not use
	accumulated []bool         // parameters that got gradients in passes without reduction since the last one with it
}

// set says what this rank has used.
func (u *usage) set(is func(i int) bool) error {
	used := make([]int32, len(u.accumulated))
	for i := range used {
		if is(i) {
			used[i] = 1
		}
	}
	var err error
	u.used, err = tensor.From(used)
	return err
}

// arrival is the order in which parameters become ready in the first pass, from which the buckets are rebuilt, once.
type arrival struct {
	order   []int
	rebuilt bool
}

// begin begins with parameters for which there is nothing to wait.
func (a *arrival) begin(first []int) {
	if !a.rebuilt {
		a.order = slices.Clone(first)
	}
}

// note says that a parameter is ready.
func (a *arrival) note(i int) {
	if !a.rebuilt {
		a.order = append(a.order, i)
	}
}

// known reports whether it is time to rebuild the buckets.
func (a *arrival) known() bool { return !a.rebuilt && len(a.order) > 0 }
