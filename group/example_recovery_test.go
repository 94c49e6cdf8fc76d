// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
)

// A group that failed is followed by another over the same store. Here rank 1 goes away in the first attempt; in a real job
// another process would take its place.
func ExampleNew_again() {
	ctx := context.Background()
	shared := store.NewMemory() // a tcpstore.Client in a real job
	var ranks sync.WaitGroup
	for rank := range cohort.Rank(2) {
		ranks.Go(func() {
			for attempt := 1; ; attempt++ {
				g, err := group.New(ctx, shared, rank, 2)
				if err != nil {
					fmt.Println(err)
					return
				}
				if rank == 1 && attempt == 1 {
					_ = g.Close() // dies
					continue
				}
				sum := []int64{int64(rank) + 1}
				err = group.AllReduceSlice(ctx, g, sum, group.Sum)
				if e, ok := errors.AsType[*cohort.Error](err); ok && e.Code == cohort.PeerLost {
					fmt.Printf("rank %d lost rank %d\n", rank, e.Rank)
					_ = g.Close()
					continue
				}
				if rank == 0 {
					fmt.Println("attempt", attempt, "sum", sum[0], err)
				}
				_ = g.Barrier(ctx).Wait(ctx)
				_ = g.Close()
				return
			}
		})
	}
	ranks.Wait()
	// Output:
	// rank 0 lost rank 1
	// attempt 2 sum 3 <nil>
}
