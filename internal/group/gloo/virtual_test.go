// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/group/transport/memtransport"
	"github.com/cohort-dist/cohort/tensor"
)

// inVirtualTime runs f for every rank of a world of 64 in a bubble and returns the errors and how long each took.
func inVirtualTime(t *testing.T, f func(ctx context.Context, rank int, mesh transport.Mesh) error) ([]error, []time.Duration) {
	t.Helper()
	const size = 64
	errs, took := make([]error, size), make([]time.Duration, size)
	synctest.Test(t, func(t *testing.T) {
		w := memtransport.New(size)
		begin := time.Now()
		var wg sync.WaitGroup
		for r := range size {
			wg.Go(func() {
				errs[r] = f(t.Context(), r, w.Mesh(r))
				took[r] = time.Since(begin)
			})
		}
		wg.Wait()
	})
	return errs, took
}

func TestBarrierWaitsForTheLastRank(t *testing.T) {
	errs, took := inVirtualTime(t, func(ctx context.Context, rank int, mesh transport.Mesh) error {
		if rank == 41 {
			time.Sleep(10 * time.Minute)
		}
		return NewEngine(mesh).Run(ctx, &collective.Request{Kind: collective.Barrier, Timeout: 30 * time.Minute})
	})
	for r := range errs {
		if errs[r] != nil || took[r] != 10*time.Minute {
			t.Fatalf("rank %d left after %v: %v", r, took[r], errs[r])
		}
	}
}

// TestAMissingRankEndsAllRanks leaves one rank out: those that wait for it time out, and their failure ends the others
// at the same moment.
func TestAMissingRankEndsAllRanks(t *testing.T) {
	errs, took := inVirtualTime(t, func(ctx context.Context, rank int, mesh transport.Mesh) error {
		if rank == 17 {
			<-time.After(time.Hour)
			return nil
		}
		return NewEngine(mesh).Run(ctx, &collective.Request{
			Kind: collective.AllReduce, DType: tensor.Float32,
			Out: make([]byte, 4096), Timeout: 30 * time.Minute,
		})
	})
	for r := range errs {
		if r == 17 {
			continue
		}
		code := cohort.CodeOf(errs[r])
		if (code != cohort.DeadlineExceeded && code != cohort.PeerLost) || took[r] != 30*time.Minute {
			t.Errorf("rank %d ended after %v: %v", r, took[r], errs[r])
		}
	}
}

// TestDeathInTheMiddle kills a rank while its neighbours are busy with it: every rank ends at that moment.
func TestDeathInTheMiddle(t *testing.T) {
	errs, took := inVirtualTime(t, func(ctx context.Context, rank int, mesh transport.Mesh) error {
		if rank == 30 {
			time.Sleep(5 * time.Second)
			return mesh.Close()
		}
		return NewEngine(mesh).Run(ctx, &collective.Request{
			Kind: collective.AllGather, In: make([]byte, 100),
			Out: make([]byte, 6400), Timeout: 30 * time.Minute,
		})
	})
	for r := range errs {
		if r != 30 && (!errors.Is(errs[r], cohort.PeerLost) || took[r] != 5*time.Second) {
			t.Errorf("rank %d ended after %v: %v", r, took[r], errs[r])
		}
	}
}
