// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/pystack"
)

// Spawned returns the job of a program that starts its ranks with torch.multiprocessing.spawn: they set RANK and MASTER_ADDR for
// themselves, which nobody sees from outside, so the program's process must be known. ok is false where there are none.
func Spawned(ctx context.Context, pid int) (j Job, ok bool) {
	j = Job{ID: strconv.Itoa(pid), Local: true}
	var reader pystack.Reader
	for _, child := range childrenOf(pid) {
		p, err := reader.Read(ctx, child)
		if err != nil || p.Main() == nil {
			continue
		}
		if n, found := spawnedAs(p.Main().Frames); found {
			r := Describe(n, child)
			r.Command = "torch.multiprocessing.spawn"
			j.Ranks = append(j.Ranks, r)
			j.World = max(j.World, n+1)
		}
	}
	return j, len(j.Ranks) > 0
}

// spawnedAs returns the number of a process that torch.multiprocessing.spawn has started.
func spawnedAs(frames []pystack.Frame) (int, bool) {
	for _, f := range frames {
		if f.Func != "_wrap" || !strings.HasSuffix(f.File, pystack.SpawnFile) {
			continue
		}
		for arg := range strings.FieldsSeq(f.Args) {
			if value, found := strings.CutPrefix(arg, "i="); found {
				n, err := strconv.Atoi(value)
				return n, err == nil
			}
		}
	}
	return 0, false
}
