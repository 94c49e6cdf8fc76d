// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command ddp is a Go rank inside a PyTorch DistributedDataParallel job: it trains the same linear model on its own samples,
// and its parameters agree with those of the PyTorch ranks in the end.
//
//	python3 train.py 0 3 29500 &
//	python3 train.py 1 3 29500 &
//	go run ./examples/ddp 'tcp://127.0.0.1:29500?rank=2&world_size=3'
//
// DistributedDataParallel is a convention about collectives: at the start the ranks compare the number of parameters and
// take rank 0's shapes and values; in each step they sum the gradients, divided by the number of ranks, bucket by bucket;
// and before the second step rank 0 tells the order in which it found the gradients ready, which orders the bucket from
// then on.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
)

const (
	inputs, outputs, samples = 4, 2, 8
	learningRate             = 0.05
)

func main() {
	url := "env://"
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, url, 20, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, steps int, out io.Writer) error {
	w, err := cohort.Join(ctx, url, cohort.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return err
	}
	t := &trainer{g: g, order: []int32{weight, bias}}
	if err := t.start(ctx); err != nil {
		return err
	}
	loss := float32(0)
	for step := range steps {
		if loss, err = t.step(ctx, step); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(out).Encode(map[string]any{"rank": g.Rank(), "loss": loss, "weight": t.w, "bias": t.b}); err != nil {
		return err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	return w.Shutdown(ctx)
}

// The parameters of torch.nn.Linear, in the order of Module.parameters.
const (
	weight = int32(iota)
	bias
)

type trainer struct {
	g     *group.Group
	w     [outputs][inputs]float32
	b     [outputs]float32
	order []int32 // of the parameters in the bucket
}

// start does what the constructor of DistributedDataParallel does.
func (t *trainer) start(ctx context.Context) error {
	counts, err := group.AllGatherSlice(ctx, t.g, []int64{2})
	if err != nil {
		return err
	}
	for rank, n := range counts {
		if n != 2 {
			return fmt.Errorf("rank %d has %d parameters, this model has 2", rank, n)
		}
	}
	// Sizes and strides of each parameter, from rank 0.
	want := []int64{outputs, inputs, inputs, 1, outputs, 1}
	shapes := slices.Clone(want)
	if err := group.BroadcastSlice(ctx, t.g, shapes, 0); err != nil {
		return err
	}
	if !slices.Equal(shapes, want) {
		return fmt.Errorf("rank 0 has parameters of other shapes: %v", shapes)
	}
	state := make([]float32, outputs*inputs+outputs)
	if err := group.BroadcastSlice(ctx, t.g, state, 0); err != nil {
		return err
	}
	for o := range t.w {
		copy(t.w[o][:], state[o*inputs:])
	}
	copy(t.b[:], state[outputs*inputs:])
	return nil
}

// step is one forward and backward pass and one update.
func (t *trainer) step(ctx context.Context, step int) (float32, error) {
	if step == 1 {
		if err := t.reorder(ctx); err != nil {
			return 0, err
		}
	}
	loss, gradW, gradB := t.gradients(step)
	// The bucket holds all gradients one behind the other, each divided by the number of ranks.
	var bucket []float32
	for _, p := range t.order {
		if p == weight {
			for o := range gradW {
				bucket = append(bucket, gradW[o][:]...)
			}
		} else {
			bucket = append(bucket, gradB[:]...)
		}
	}
	for i := range bucket {
		bucket[i] /= float32(t.g.Size())
	}
	if err := group.AllReduceSlice(ctx, t.g, bucket, group.Sum); err != nil {
		return 0, err
	}
	for _, p := range t.order {
		if p == weight {
			for o := range t.w {
				for i := range t.w[o] {
					t.w[o][i] -= learningRate * bucket[o*inputs+i]
				}
			}
			bucket = bucket[outputs*inputs:]
		} else {
			for o := range t.b {
				t.b[o] -= learningRate * bucket[o]
			}
			bucket = bucket[outputs:]
		}
	}
	return loss, nil
}

// reorder takes the order of the gradients and the sizes of the buckets from rank 0. This model has one bucket.
func (t *trainer) reorder(ctx context.Context) error {
	order := make([]int32, len(t.order)+1) // the last one is the number of buckets
	if err := group.BroadcastSlice(ctx, t.g, order, 0); err != nil {
		return err
	}
	if order[len(t.order)] != 1 {
		return fmt.Errorf("rank 0 has %d buckets, this model has one", order[len(t.order)])
	}
	if err := group.BroadcastSlice(ctx, t.g, make([]int32, 1), 0); err != nil {
		return err
	}
	t.order = order[:len(t.order)]
	return nil
}

// gradients of the mean squared error over this rank's samples.
func (t *trainer) gradients(step int) (loss float32, gradW [outputs][inputs]float32, gradB [outputs]float32) {
	truth := [outputs][inputs]float32{{1, -2, 0.5, 3}, {0.25, 1.5, -1, 2}}
	const count = samples * outputs
	for s := range samples {
		var x [inputs]float32
		for i := range x {
			x[i] = float32(math.Sin(float64(s*inputs+i)*0.7 + float64(t.g.Rank())*1.3 + float64(step)*0.1))
		}
		for o := range outputs {
			predicted, target := t.b[o], float32(0.1)
			for i := range x {
				predicted += t.w[o][i] * x[i]
				target += truth[o][i] * x[i]
			}
			diff := predicted - target
			loss += diff * diff / count
			gradB[o] += 2 * diff / count
			for i := range x {
				gradW[o][i] += 2 * diff * x[i] / count
			}
		}
	}
	return loss, gradW, gradB
}
