// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// Bucket is gradients that are reduced together. It corresponds to torch.distributed.GradBucket.
type Bucket struct {
	Index int            // in the order of reduction
	Last  bool           // of this pass
	Data  *tensor.Tensor // the gradients one after another, in one dimension; nil for a sparse one
	Grads []*tensor.Tensor
	// Sparse is a sparse gradient, which has a bucket of its own; else nil. A hook puts the result into its fields.
	Sparse *tensor.Sparse
}

// CommHook begins the reduction of a bucket and returns at once with a function that waits for its end. When that has
// returned nil, b.Data or b.Sparse must hold the result on all ranks; the gradients are not divided before the hook gets them, so the
// hook must compute the mean. Hooks run in the order of the buckets, the same on all ranks. A hook that begins a forward or a pass
// through the model fails it. One that calls [Model.Close] ends the pass; [Model.SetSync] is for the next forward, as always.
// It corresponds to the hooks of DistributedDataParallel.register_comm_hook.
type CommHook func(ctx context.Context, g *group.Group, b Bucket) (wait func(context.Context) error)

// WithCommHook lets a hook reduce the gradients. It can be given once.
func WithCommHook(h CommHook) Option {
	return optionFunc(func(c *config) {
		c.badComm = c.badComm || h == nil || c.comm != nil
		c.comm = h
	})
}

// FP16 is a [CommHook] that sends gradients with half the bytes: rounded to float16, divided and summed. It corresponds to
// fp16_compress_hook.
func FP16(ctx context.Context, g *group.Group, b Bucket) func(context.Context) error {
	return compressed(ctx, g, b, tensor.Float16)
}

// BF16 is [FP16] with bfloat16, whose range is that of float32. It corresponds to bf16_compress_hook.
func BF16(ctx context.Context, g *group.Group, b Bucket) func(context.Context) error {
	return compressed(ctx, g, b, tensor.BFloat16)
}

func compressed(ctx context.Context, g *group.Group, b Bucket, dt tensor.DType) func(context.Context) error {
	if b.Sparse != nil {
		return func(context.Context) error {
			return cohort.Newf("ddp: hook", cohort.NotSupported, "sparse gradients are not sent as %v: gloo cannot add them", dt)
		}
	}
	small, err := tensorops.Convert(b.Data, dt)
	if err == nil {
		small, err = tensorops.Binary(tensorops.Div, tensorops.Of(small), tensorops.Num(float64(g.Size())))
	}
	if err != nil {
		return func(context.Context) error { return err }
	}
	work := g.AllReduce(ctx, small, group.Sum)
	return func(ctx context.Context) error {
		if err := work.Wait(ctx); err != nil {
			return err
		}
		wide, err := tensorops.Convert(small, b.Data.DType())
		if err != nil {
			return err
		}
		return b.Data.CopyFrom(wide)
	}
}

// reduce begins the reduction of a bucket.
func (m *Model) reduce(ctx context.Context, b *bucket) wait {
	switch {
	case m.config.comm != nil:
		end := m.config.comm(ctx, m.g, Bucket{b.index, b.index == len(m.pools.buckets)-1, b.data, b.views, b.sparse})
		if end == nil {
			err := cohort.Newf("ddp: hook", cohort.InvalidArgument, "the hook returned nothing to wait for bucket %d with", b.index)
			return func(context.Context) error { return err }
		}
		return end
	case b.sparse != nil:
		return m.g.AllReduceSparse(ctx, b.sparse, group.Sum).Wait
	}
	return m.g.AllReduce(ctx, b.data, m.operator(b)).Wait
}

// operator is the reduction of a dense bucket. Go ranks divide the sums, each its part while it is at hand. Others divide before they
// add, as PyTorch does: ranks of which some are PyTorch's; those that may have joined, because their number changes; and halves, whose
// sum could be infinite.
func (m *Model) operator(b *bucket) group.ReduceOp {
	dt := b.data.DType()
	if m.g.Transport() == group.Gloo || m.joining != nil || dt != tensor.Float32 && dt != tensor.Float64 {
		return group.Sum
	}
	return group.Avg
}
