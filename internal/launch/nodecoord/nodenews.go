// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

// This file puts together, and shortens, what the launchers of a job send each other about their workers.

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
)

// MergeReports puts together what the nodes of a job have seen.
func MergeReports(all []verdict.Job) verdict.Job {
	known := func(j verdict.Job) (n int) {
		for _, w := range j.Waits {
			if w.Rank >= 0 {
				n++
			}
		}
		return n
	}
	out := verdict.Job{World: all[0].World, Taken: all[0].Taken}
	for _, j := range all {
		for _, r := range j.Ranks {
			r.Taken = j.Taken // the clocks of nodes differ
			out.Ranks = append(out.Ranks, r)
		}
		out.GPUErrors = append(out.GPUErrors, j.GPUErrors...)
		for _, note := range j.Notes {
			if !slices.Contains(out.Notes, note) {
				out.Notes = append(out.Notes, note)
			}
		}
		// All of them asked the same store, and each knows the ranks of its own host.
		if len(out.Waits) == 0 || known(j) > known(out) {
			out.Waits = j.Waits
		}
		for _, w := range j.Polls {
			if w.Rank >= 0 {
				out.Polls = append(out.Polls, w)
			}
		}
		if len(out.NCCL) == 0 { // each process of NCCL answers for all
			out.NCCL, out.Communicators = j.NCCL, j.Communicators
		}
	}
	return out
}

// TrimReport returns what was seen as JSON, with less detail where that is too long.
func TrimReport(seen verdict.Job, limit int) json.RawMessage {
	for _, less := range []func(*verdict.Rank){
		func(*verdict.Rank) {},
		func(r *verdict.Rank) { r.Threads = nil },
		func(r *verdict.Rank) {
			if d := r.Dump; d != nil && len(d.Entries) > 64 {
				cut := *d
				cut.Entries = d.Entries[len(d.Entries)-64:]
				r.Dump = &cut
			}
		},
		func(r *verdict.Rank) { r.Dump = nil },
		func(r *verdict.Rank) { r.Main, r.Trouble = nil, "there are too many ranks to report all" },
	} {
		seen.Ranks = slices.Clone(seen.Ranks)
		for i := range seen.Ranks {
			less(&seen.Ranks[i])
		}
		if b, err := json.Marshal(seen); err == nil && len(b) <= limit {
			return b
		}
	}
	return nil
}

// ShortenDumps returns dumps as JSON, with the last operations alone where that is too long for a message.
func ShortenDumps(dumps []flightrec.Dump, limit int) json.RawMessage {
	for _, most := range []int{math.MaxInt, 256, 32, 4, 1} {
		for _, d := range dumps {
			for i, g := range d.Groups {
				cut := max(0, len(g.Entries)-most)
				d.Groups[i].Entries = g.Entries[cut:]
				d.Groups[i].Lost += uint64(cut)
			}
		}
		if b, err := json.Marshal(dumps); err == nil && len(b) <= limit {
			return b
		}
	}
	return nil
}
