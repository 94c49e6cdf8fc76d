// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
)

// TestMonitoredBarrier: it passes when all come; when rank 1 does not, rank 0 names it and the others fail because of rank 0.
func TestMonitoredBarrier(t *testing.T) {
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			over := make(chan struct{}, worldSize)
			runOver(t, transport, worldSize, func(ctx context.Context, g *group.Group) error {
				for _, opts := range [][]group.OpOption{
					{group.WithTimeout(30 * time.Second)},
					{group.WithTimeout(30 * time.Second), group.WaitAllRanks()},
				} {
					for range 10 {
						g.AllReduce(ctx, full(float32(g.Rank()), 10), group.Sum)
					}
					if err := g.MonitoredBarrier(ctx, opts...); err != nil {
						return err
					}
				}
				if g.Rank() == 1 { // it is there, and does not come
					for range worldSize - 1 {
						<-over
					}
					return nil
				}
				defer func() { over <- struct{}{} }()
				err := g.MonitoredBarrier(ctx, group.WithTimeout(time.Second))
				if g.Rank() == 0 {
					return names(err, "rank 1 did not reach the barrier")
				}
				return told(ctx, g, err, "rank 1 did not reach")
			})
		})
	}
}

// told checks that a rank at the barrier has learnt that it failed, from rank 0 or from the connections that rank 0 has closed.
func told(ctx context.Context, g *group.Group, err error, words string) error {
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d reached the barrier", g.Rank())) &&
		!strings.Contains(err.Error(), words) {
		return fmt.Errorf("rank %d passed or says nothing: %w", g.Rank(), err)
	}
	return nil
}

// names checks that a barrier failed for lack of time and says what is wanted.
func names(err error, words string) error {
	if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("%w, want %q", err, words)
	}
	return nil
}

// TestMonitoredBarrierSubgroup: the same in a group of two; ranks outside have nothing to wait for.
func TestMonitoredBarrierSubgroup(t *testing.T) {
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			over := make(chan struct{})
			runOver(t, transport, worldSize, func(ctx context.Context, world *group.Group) error {
				g, err := world.NewGroup(ctx, []cohort.Rank{0, 1})
				if g == nil || err != nil {
					return err
				}
				defer func() { _ = g.Close() }()
				if g.Rank() == 1 {
					<-over
					return nil
				}
				defer close(over)
				return names(g.MonitoredBarrier(ctx, group.WithTimeout(100*time.Millisecond)), "rank 1 did not reach the barrier")
			})
		})
	}
}

// alone runs rank 0 and those that come with it; the others stay away until it is over.
func alone(t *testing.T, comes func(rank int) bool, f func(ctx context.Context, g *group.Group) error) {
	t.Helper()
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			over := make(chan struct{})
			runOver(t, transport, worldSize, func(ctx context.Context, g *group.Group) error {
				switch {
				case g.Rank() == 0:
					defer close(over)
					return f(ctx, g)
				case comes(int(g.Rank())):
					if err := told(ctx, g, g.MonitoredBarrier(ctx, group.WithTimeout(30*time.Second)),
						"ranks 2 and 3 did not reach"); err != nil {
						return err
					}
				}
				<-over
				return nil
			})
		})
	}
}

// TestMonitoredBarrierNoTime: rank 0 with next to no time says so and names those it did not hear from.
func TestMonitoredBarrierNoTime(t *testing.T) {
	alone(t, func(int) bool { return false }, func(ctx context.Context, g *group.Group) error {
		return names(g.MonitoredBarrier(ctx, group.WithTimeout(time.Nanosecond)), "did not reach the barrier within 1ns")
	})
}

// TestMonitoredBarrierOrder: of two late ranks the first is the one that the error is about.
func TestMonitoredBarrierOrder(t *testing.T) {
	alone(t, func(r int) bool { return r == 1 }, func(ctx context.Context, g *group.Group) error {
		err := g.MonitoredBarrier(ctx, group.WithTimeout(2*time.Second))
		var e *cohort.Error
		if !errors.As(err, &e) || e.Rank != 2 {
			return fmt.Errorf("%w, want rank 2", err)
		}
		return names(err, "ranks 2 and 3 did not reach the barrier")
	})
}

// TestMonitoredBarrierAll: rank 0 alone names everybody.
func TestMonitoredBarrierAll(t *testing.T) {
	alone(t, func(int) bool { return false }, func(ctx context.Context, g *group.Group) error {
		return names(g.MonitoredBarrier(ctx, group.WithTimeout(100*time.Millisecond), group.WaitAllRanks()),
			"ranks 1, 2 and 3 did not reach the barrier")
	})
}
