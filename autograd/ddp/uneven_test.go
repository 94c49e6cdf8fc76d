// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/group"
)

// TestJoinFailUneven: when a rank runs out of data, all ranks stop after the same step, and can go on with the same model.
func TestJoinFailUneven(t *testing.T) {
	t.Parallel()
	for _, unused := range []bool{false, true} {
		for _, steps := range [][]int{{0, 3, 3}, {3, 1, 2}, {2, 2, 3}, {3, 0, 0}, {2, 2, 2}, {0, 0, 0}} {
			unevenRun(t, unused, steps)
		}
	}
}

func unevenRun(t *testing.T, unused bool, steps []int) {
	t.Helper()
	fewest, most := min(steps[0], steps[1], steps[2]), max(steps[0], steps[1], steps[2])
	world(t, len(steps), func(ctx context.Context, g *group.Group) error {
		m, reference := net(uint64(g.Rank())), net(0)
		opts := []ddp.Option{ddp.WithBuckets(1, 100)}
		if unused {
			opts = append(opts, ddp.WithFindUnused())
		}
		model, err := ddp.New(ctx, g, m, opts...)
		if err != nil {
			return err
		}
		defer model.Close()
		taken := 0
		one := func() error {
			zero(m)
			if failure := step(ctx, model, uint64(cohort.Rank(10*taken)+g.Rank())); failure != nil {
				return failure
			}
			want, failure := single(ctx, reference, []uint64{uint64(10 * taken), uint64(10*taken + 1), uint64(10*taken + 2)})
			if failure != nil {
				return failure
			}
			if got := grads(m); !near(got, want) {
				return fmt.Errorf("step %d: %v, want %v", taken, got, want)
			}
			taken++
			return nil
		}
		err = model.Join(ctx, func() error {
			for range steps[g.Rank()] {
				if failure := one(); failure != nil {
					if g.Rank() == 2 { // Join says it nevertheless
						return nil
					}
					return failure
				}
			}
			return nil
		}, ddp.FailUneven())
		switch uneven := errors.Is(err, ddp.ErrUneven) && errors.Is(err, cohort.Mismatch); {
		case fewest == most && err != nil:
			return fmt.Errorf("steps %v: %w", steps, err)
		case fewest < most && !uneven:
			return fmt.Errorf("steps %v: Join ended with %w", steps, err)
		case taken != fewest:
			return fmt.Errorf("steps %v: rank %d took %d", steps, g.Rank(), taken)
		}
		for range 2 { // the ranks are in step
			if err := one(); err != nil {
				return fmt.Errorf("steps %v, afterwards: %w", steps, err)
			}
		}
		return nil
	})
}

// TestJoinFailUnevenDeath: a rank that dies instead of saying that it ran out ends Join on the others with the group's error.
func TestJoinFailUnevenDeath(t *testing.T) {
	t.Parallel()
	world(t, 3, func(ctx context.Context, g *group.Group) error {
		m := net(0)
		model, err := ddp.New(ctx, g, m)
		if err != nil {
			return err
		}
		defer model.Close()
		err = model.Join(ctx, func() error {
			for i := range 2 + g.Rank() {
				if failure := step(ctx, model, uint64(10*i)); failure != nil {
					return failure
				}
			}
			if g.Rank() == 0 {
				_ = g.Close()
			}
			return nil
		}, ddp.FailUneven())
		switch {
		case err == nil || errors.Is(err, ddp.ErrUneven):
			return fmt.Errorf("Join ended with %w", err)
		case model.Prepare(ctx) == nil:
			return errors.New("the model can still be used")
		}
		_ = g.Close()
		return errLeft
	})
}

// TestJoinAccumulates: within Join, too, passes without sync only accumulate, also when other ranks have joined, and ranks may join one
// after the other.
func TestJoinAccumulates(t *testing.T) {
	t.Parallel()
	const size, micro = 3, 2
	world(t, size, func(ctx context.Context, g *group.Group) error {
		m, reference := net(uint64(g.Rank())), net(0)
		model, err := ddp.New(ctx, g, m, ddp.WithBuckets(1, 100))
		if err != nil {
			return err
		}
		defer model.Close()
		return model.Join(ctx, func() error {
			for round := range 2 + int(g.Rank()) {
				zero(m)
				var sum [][]float32
				for k := range micro {
					seed := uint64(100*round + 10*k)
					model.SetSync(k == micro-1)
					if err := step(ctx, model, seed+uint64(g.Rank())); err != nil {
						return err
					}
					var seeds []uint64
					for rank := range uint64(size) {
						if round < 2+int(rank) {
							seeds = append(seeds, seed+rank)
						}
					}
					want, err := single(ctx, reference, seeds)
					if err != nil {
						return err
					}
					for i := range want {
						for j := range want[i] {
							want[i][j] *= float32(len(seeds)) / size
							if k > 0 {
								want[i][j] += sum[i][j]
							}
						}
					}
					sum = want
				}
				if got := grads(m); !near(got, sum) {
					return fmt.Errorf("round %d: %v, want %v", round, got, sum)
				}
			}
			return nil
		})
	})
}
