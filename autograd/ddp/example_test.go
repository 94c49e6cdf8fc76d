// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// Two ranks with different data get the mean of their gradients. Real ranks are processes that share a store over the
// network.
func ExampleNew() {
	ctx := context.Background()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	run := func(rank int) error {
		g, err := group.New(ctx, s, cohort.Rank(rank), 2)
		if err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		net := nn.NewLinear(rand.New(rand.NewPCG(1, uint64(rank))), 2, 1)
		model, err := ddp.New(ctx, g, net)
		if err != nil {
			return err
		}
		defer model.Close()
		x := autograd.Constant(tensor.Must(tensor.From([]float32{float32(rank), 10}, 1, 2)))
		if err := model.Forward(ctx, x).Sum().Backward(ctx); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Println(net.Weight.Grad())
		}
		return g.Barrier(ctx).Wait(ctx) // leave together
	}
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			if err := run(rank); err != nil {
				fmt.Println(err)
			}
		})
	}
	ranks.Wait()
	// Output:
	// tensor([[ 0.5000, 10.0000]])
}
