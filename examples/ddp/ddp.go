// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/cohort-dist/cohort/group"
)

// ddp is what PyTorch's DistributedDataParallel exchanges for a model without buffers, on one rank. Rank 0 may be a PyTorch
// process or another one of these.
type ddp struct {
	g       *group.Group
	params  []*parameter
	buckets [][]int // parameters by bucket, in the order in which a bucket holds them
	steps   int
	settled bool // the buckets have their final order
}

// newDDP does what the constructor does: compare the models, then take rank 0's parameters.
func newDDP(ctx context.Context, g *group.Group, params []*parameter) (*ddp, error) {
	counts, err := group.AllGatherSlice(ctx, g, []int64{int64(len(params))})
	if err != nil {
		return nil, err
	}
	for rank, n := range counts {
		if n != int64(len(params)) {
			return nil, fmt.Errorf("rank %d has %d parameters, this rank %d", rank, n, len(params))
		}
	}
	own := layout(params)
	first := append([]int64(nil), own...)
	if err := group.BroadcastSlice(ctx, g, first, 0); err != nil {
		return nil, err
	}
	for i := range own {
		if own[i] != first[i] {
			return nil, fmt.Errorf("rank 0 has parameters of other shapes: sizes and strides %v, this rank %v", first, own)
		}
	}
	all := make([]int, len(params))
	for i := range all {
		all[i] = i
	}
	// A small model has one bucket, which holds the parameters in the model's order at first.
	d := &ddp{g: g, params: params, buckets: [][]int{all}}
	flat := d.gather(all, func(p *parameter) []float32 { return p.values }, 1)
	if err := group.BroadcastSlice(ctx, g, flat, 0); err != nil {
		return nil, err
	}
	d.spread(all, flat, func(p *parameter) []float32 { return p.values })
	return d, nil
}

// layout lists sizes and strides of all parameters.
func layout(params []*parameter) []int64 {
	var list []int64
	for _, p := range params {
		strides := make([]int64, len(p.shape))
		stride := int64(1)
		for i := len(p.shape) - 1; i >= 0; i-- {
			strides[i] = stride
			stride *= int64(p.shape[i])
		}
		for _, n := range p.shape {
			list = append(list, int64(n))
		}
		list = append(list, strides...)
	}
	return list
}

// beforeForward takes over, once, the order in which rank 0's gradients became ready in the first backward pass.
func (d *ddp) beforeForward(ctx context.Context) error {
	if d.steps == 0 || d.settled {
		return nil
	}
	d.settled = true
	// The parameters of all buckets one behind the other, then the number of buckets.
	order := make([]int32, len(d.params)+1)
	sizes := []int32{int32(len(d.params))} //nolint:gosec // few
	if d.g.Rank() == 0 {
		for i := range d.params { // the last layer's gradients come first
			order[i] = int32(len(d.params) - 1 - i) //nolint:gosec // few
		}
		order[len(d.params)] = 1
	}
	if err := group.BroadcastSlice(ctx, d.g, order, 0); err != nil {
		return err
	}
	n := int(order[len(d.params)])
	if n < 1 || n > len(d.params) {
		return fmt.Errorf("rank 0 has %d buckets for %d parameters", n, len(d.params))
	}
	if d.g.Rank() != 0 {
		sizes = make([]int32, n)
	}
	if err := group.BroadcastSlice(ctx, d.g, sizes, 0); err != nil {
		return err
	}
	d.buckets = nil
	at := 0
	for _, size := range sizes {
		var bucket []int
		for range size {
			if at >= len(d.params) || order[at] < 0 || int(order[at]) >= len(d.params) {
				return fmt.Errorf("rank 0 sent buckets of sizes %v with order %v", sizes, order)
			}
			bucket = append(bucket, int(order[at]))
			at++
		}
		d.buckets = append(d.buckets, bucket)
	}
	return nil
}

// reduceGradients makes every gradient the mean over all ranks.
func (d *ddp) reduceGradients(ctx context.Context) error {
	d.steps++
	gradient := func(p *parameter) []float32 { return p.grad }
	for _, bucket := range d.buckets {
		// PyTorch divides before it adds, and so must everybody.
		flat := d.gather(bucket, gradient, 1/float32(d.g.Size()))
		if err := group.AllReduceSlice(ctx, d.g, flat, group.Sum); err != nil {
			return err
		}
		d.spread(bucket, flat, gradient)
	}
	return nil
}

// gather copies what of the bucket's parameters into one buffer, multiplied by factor.
func (d *ddp) gather(bucket []int, what func(*parameter) []float32, factor float32) []float32 {
	var flat []float32
	for _, i := range bucket {
		for _, v := range what(d.params[i]) {
			flat = append(flat, v*factor)
		}
	}
	return flat
}

// spread copies a buffer back.
func (d *ddp) spread(bucket []int, flat []float32, what func(*parameter) []float32) {
	for _, i := range bucket {
		flat = flat[copy(what(d.params[i]), flat):]
	}
}
