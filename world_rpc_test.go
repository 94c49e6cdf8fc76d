// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/rpc"
)

func TestWorldRPC(t *testing.T) {
	const size = 2
	handlers := rpc.NewRegistry().MustHandle("stats.double", func(n int) int { return 2 * n })
	joinAll(t, size, nil, func(ctx context.Context, w *cohort.World) error {
		for round := range 2 { // a second agent joins the next round, as a second init_rpc does
			agent, err := w.RPC(ctx, fmt.Sprintf("w%d", w.Rank()), rpc.WithHandlers(handlers))
			if err != nil {
				return err
			}
			other := fmt.Sprintf("w%d", (int(w.Rank())+1)%size)
			if got, err := rpc.Call[int](ctx, agent, other, "stats.double", 21); err != nil || got != 42 {
				return fmt.Errorf("round %d: got %d, %w", round, got, err)
			}
			if round == 0 {
				if err := agent.Shutdown(ctx); err != nil {
					return err
				}
			}
		}
		if err := w.Shutdown(ctx); err != nil { // ends the second agent in order
			return err
		}
		if _, err := w.RPC(ctx, "late"); !errors.Is(err, dist.Closed) {
			return fmt.Errorf("RPC after Shutdown: %w", err)
		}
		return nil
	})
}

// Two processes call each other. With PyTorch among them, whose processes call init_rpc, the Go code is the same.
func ExampleWorld_RPC() {
	dir, err := os.MkdirTemp("", "cohort")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	url := "file://" + filepath.Join(dir, "job") + "?world_size=2"
	handlers := rpc.NewRegistry().MustHandle("ps.scale", func(x, factor float64) float64 { return x * factor }, "x", "factor")

	ctx := context.Background()
	var workers sync.WaitGroup
	for rank, name := range []string{"trainer", "ps"} {
		workers.Go(func() {
			w, err := cohort.Join(ctx, fmt.Sprintf("%s&rank=%d", url, rank))
			if err != nil {
				panic(err)
			}
			defer func() { _ = w.Close() }()
			agent, err := w.RPC(ctx, name, rpc.WithHandlers(handlers))
			if err != nil {
				panic(err)
			}
			if name == "trainer" {
				y, err := rpc.Call[float64](ctx, agent, "ps", "ps.scale", 1.5, rpc.Kw{"factor": 4.0})
				fmt.Println(y, err)
			}
			if err := w.Shutdown(ctx); err != nil {
				panic(err)
			}
		})
	}
	workers.Wait()
	// Output: 6 <nil>
}
