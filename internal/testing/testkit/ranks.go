// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// EachRank runs f for every rank at once and returns the errors of all, each with its rank.
func EachRank(size int, f func(rank int) error) error {
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	return SomeRanks(all, f)
}

// SomeRanks is [EachRank] of some ranks.
func SomeRanks(ranks []int, f func(rank int) error) error {
	if len(ranks) == 0 {
		return nil
	}
	errs := make([]error, slices.Max(ranks)+1)
	var wg sync.WaitGroup
	for _, r := range ranks {
		wg.Go(func() {
			if err := f(r); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Interrupt runs something that can be continued, and interrupts it up to two times in the middle, after at most so long each. An error E
// says that a run was interrupted and can be continued.
func Interrupt[E error](run func(ctx context.Context) error, seed uint64, longest time.Duration) error {
	random := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // a test that can be repeated
	for range random.IntN(3) {
		ctx, cancel := context.WithCancel(context.Background())
		if random.IntN(2) == 0 {
			cancel()
		} else {
			time.AfterFunc(time.Duration(random.Int64N(int64(longest))), cancel)
		}
		err := run(ctx)
		cancel()
		if _, ok := errors.AsType[E](err); !ok {
			return err
		}
	}
	return run(context.Background())
}
