// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package monitoredbarrier

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport/memtransport"
)

// run runs the barrier on the ranks that come, and returns what each says and when.
func run(t *testing.T, size int, all bool, comes func(r int) bool, ctxOf func(r int) context.Context) ([]error, []time.Duration) {
	t.Helper()
	w := memtransport.New(size)
	began := time.Now()
	errs, took := make([]error, size), make([]time.Duration, size)
	var wg sync.WaitGroup
	for r := range size {
		if comes(r) {
			wg.Go(func() {
				b := Barrier{Mesh: w.Mesh(r), Report: 7, Release: 8, Limit: time.Minute, All: all}
				errs[r] = b.Run(ctxOf(r))
				took[r] = time.Since(began)
			})
		}
	}
	wg.Wait()
	return errs, took
}

func TestAllPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for size := 1; size <= 5; size++ {
			errs, _ := run(t, size, size%2 == 0, func(int) bool { return true }, func(int) context.Context { return t.Context() })
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestNamesTheLate: rank 0 names the ranks that are late and those that arrived, the others blame rank 0, and no rank
// waits for longer than it should: for one limit, or one for each late rank.
func TestNamesTheLate(t *testing.T) {
	for all, want := range map[bool]time.Duration{false: time.Minute, true: 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			errs, took := run(t, 5, all, func(r int) bool { return r != 2 && r != 4 }, func(r int) context.Context {
				if r == 0 {
					return ctx
				}
				limited, stop := context.WithTimeout(ctx, time.Hour)
				t.Cleanup(stop)
				return limited
			})
			e, _ := errors.AsType[*cohort.Error](errs[0])
			if e == nil || e.Code != cohort.DeadlineExceeded || e.Rank != 2 ||
				!strings.Contains(e.Detail, "ranks 2 and 4 did not reach the barrier within 1m0s; ranks 1 and 3 did") {
				t.Errorf("all %v: rank 0: %v", all, errs[0])
			}
			if took[0] != want {
				t.Errorf("all %v: rank 0 took %v, want %v", all, took[0], want)
			}
			for _, r := range []int{1, 3} {
				if errs[r] == nil {
					t.Errorf("all %v: rank %d passed", all, r)
				}
			}
		})
	}
}

// names reports whether err names a rank.
func names(err error, rank int) bool {
	e, ok := errors.AsType[*cohort.Error](err)
	return ok && int(e.Rank) == rank
}

// TestCancelled: a context that ends takes every rank out of the barrier, whichever rank is missing, and leaves nothing posted.
func TestCancelled(t *testing.T) {
	for missing := range 3 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			errs, took := run(t, 3, true, func(r int) bool { return r != missing }, func(int) context.Context { return ctx })
			for r, err := range errs {
				if r != missing && (!errors.Is(err, context.DeadlineExceeded) || took[r] != time.Second) {
					t.Errorf("without rank %d: rank %d after %v: %v", missing, r, took[r], err)
				}
				want := fmt.Sprintf("rank %d had not reached the barrier; rank %d had", missing, 3-missing)
				if r == 0 && missing != 0 && (!strings.Contains(err.Error(), want) || !names(err, missing)) {
					t.Errorf("rank 0 does not name rank %d: %v", missing, err)
				}
			}
		})
	}
}
