// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command allreduce is one rank of a job that averages a vector over all ranks. Start it once for each rank:
//
//	go run ./examples/allreduce 'tcp://127.0.0.1:29500?rank=0&world_size=2' &
//	go run ./examples/allreduce 'tcp://127.0.0.1:29500?rank=1&world_size=2'
//
// Ranks on one host share memory, ranks on several use TCP. A rank may also be a PyTorch process that calls all_reduce with
// a tensor of four float64; then all ranks use gloo.
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cohort-dist/cohort/examples/internal/launch"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/world"
)

func main() { launch.Main(run) }

func run(ctx context.Context, url string, out io.Writer) error {
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return err
	}

	// Every rank has its own measurements; afterwards all have the mean.
	values := []float64{float64(w.Rank()), 1, 2, 3}
	if err := group.AllReduceSlice(ctx, g, values, group.Sum); err != nil {
		return err
	}
	for i := range values {
		values[i] /= float64(g.Size())
	}
	_, _ = fmt.Fprintf(out, "rank %d of %d over %s: mean %v\n", g.Rank(), g.Size(), g.Transport(), values)

	// Leave together: a rank that has left ends the operations of the others.
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	return w.Shutdown(ctx)
}
