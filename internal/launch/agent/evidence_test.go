// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
)

// TestEvidenceInTime: the look at the workers ends in time, whatever keeps one of the readers, and has what the others found.
func TestEvidenceInTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slow  time.Duration // how long rank 1 takes
		store time.Duration
		took  time.Duration
		error string
		waits int
	}{
		"quick":        {time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond, "", 1},
		"a slow rank":  {time.Hour, 2 * time.Millisecond, evidenceTime, "it was not read in time", 1},
		"a slow store": {time.Millisecond, time.Hour, evidenceTime, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var running sync.WaitGroup
				e := collection{
					time: evidenceTime, running: &running,
					ranks: []RankState{{Rank: 0}, {Rank: 1, Error: "it was not read in time"}},
					read: func(_ context.Context, rank cohort.Rank, _ int) RankState {
						if rank == 1 {
							time.Sleep(c.slow) // it does not notice the end of its context
						}
						return RankState{Rank: rank, Doing: "work"}
					},
					waits: func() []StoreWait {
						time.Sleep(c.store)
						return make([]StoreWait, 1)
					},
				}.take()
				if e.Took != c.took || e.Ranks[0].Doing != "work" || e.Ranks[1].Error != c.error || len(e.Waits) != c.waits {
					t.Errorf("%+v", e)
				}
				running.Wait()
			})
		})
	}
}
