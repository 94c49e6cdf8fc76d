// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"syscall"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestStands: ranks at a barrier of the program's own hang though they run, who holds a file lock is named, and a job that sleeps is not called hung.
func TestStands(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		name, dir := jobID("stands"), place(t, torch)
		j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2", "--rdzv-id", name}, "-u", dir+"/stands.py", dir+"/lock")
		for _, part := range []struct {
			kind, want string
			hung       bool
		}{
			{"poll", `^Ranks 0 and 1 poll the store for the key \S+/arrived \(always 2\), in own_barrier \(stands\.py:\d+\)( for \d+ s)?: no rank changes it\.$`, true},
			{"lock", `^Rank 1 has not reached barrier \(stands\.py:\d+\); it is in take_lock \(stands\.py:\d+\), waiting for a file lock of /\S+/lock, held by rank 0,( for \d+ s)?; rank 0 waits( for \d+ s)?\.$`, true},
			{"sleep", `^Perhaps not hung: no rank waits in torch\.distributed; ranks 0 and 1 are in load_batch \(stands\.py:\d+\), sleeping( for \d+ s)?(, and for \d+ s more)?\.$`, false},
		} {
			j.wait(j.out, "at "+part.kind+"\n", 2)
			if _, hung := whether(t, name, part.want); hung != part.hung {
				t.Errorf("%s: hung is %v", part.kind, hung)
			}
			if part.kind != "sleep" {
				signalRank(t, name, 1, syscall.SIGUSR1)
			}
		}
		_ = j.Process.Signal(syscall.SIGTERM)
		j.end()
	})
}
