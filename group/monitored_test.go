// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// TestMonitoredBarrierBesideAnotherCollective: some ranks are in a monitored barrier while others are in another collective. All find
// out at once, and each error names a rank of both sides with what it called. The barrier's own limit is far away.
func TestMonitoredBarrierBesideAnotherCollective(t *testing.T) {
	t.Parallel()
	for _, transport := range []Transport{TCP, SharedMemory} {
		for _, in := range [][]bool{{true, true, false}, {false, true, true}, {true, false, false}, {false, false, true}} {
			for _, kind := range []OpType{OpAllReduce, OpBarrier, OpAllGather} {
				t.Run(fmt.Sprintf("%s/%v/%v", transport, in, kind), func(t *testing.T) {
					t.Parallel()
					groups := newWorld(t, 3, WithTransport(transport), WithTimeout(10*time.Minute))
					ctx := ctxOf(t)
					errs := make([]error, 3)
					_ = each(3, func(r int) error {
						if in[r] {
							errs[r] = groups[r].MonitoredBarrier(ctx)
						} else {
							errs[r] = call{kind: kind, shape: []int{2, 3}, op: Sum}.on(ctx, groups[r]).Wait(ctx)
						}
						return nil
					})
					for r, err := range errs {
						if text := fmt.Sprint(err); !errors.Is(err, cohort.Mismatch) || strings.Count(text, " called ") != 2 ||
							!strings.Contains(text, "called monitored_barrier(") || !strings.Contains(text, "called "+kind.String()+"(") {
							t.Errorf("rank %d: %v", r, err)
						}
					}
				})
			}
		}
	}
}

// TestMonitoredBarrierThenCollectives: ranks leave a monitored barrier one after the other and go on, which differs in nothing.
func TestMonitoredBarrierThenCollectives(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			groups := newWorld(t, 4, WithTransport(transport))
			ctx := ctxOf(t)
			must(t, each(4, func(r int) error {
				for range 50 {
					if err := groups[r].MonitoredBarrier(ctx); err != nil {
						return err
					}
					if err := sumOf(ctx, groups[r]); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}

// TestMonitoredBarrierOnGloo: the wire of gloo does not carry what a rank called, so the error says where to look.
func TestMonitoredBarrierOnGloo(t *testing.T) {
	t.Parallel()
	groups := newWorld(t, 2, WithTransport(Gloo))
	ctx := ctxOf(t)
	errs := make([]error, 2)
	_ = each(2, func(r int) error {
		if r == 0 {
			errs[r] = groups[r].MonitoredBarrier(ctx, WithTimeout(300*time.Millisecond))
		} else {
			errs[r] = groups[r].Barrier(ctx).Wait(ctx)
		}
		return nil
	})
	if !errors.Is(errs[0], cohort.DeadlineExceeded) || !strings.Contains(errs[0].Error(), "rank 1 did not reach the barrier") ||
		!strings.Contains(errs[0].Error(), "cohort why") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if errs[1] == nil {
		t.Error("rank 1 has passed")
	}
}
