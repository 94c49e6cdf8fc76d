// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// latest is how many collectives of a group are compared, and leastLag what a rank that is slow comes later than the others.
	latest   = 8
	leastLag = 10 * time.Millisecond
)

// slowest says which rank has come last to the latest collectives of a group, if it was the same one each time: a job that does not
// hang is as fast as this rank. Recorders of different hosts are not compared, as their clocks differ.
func (c *analysis) slowest() string {
	untold := func(r Rank) bool { return r.Gone == "" && r.Dump == nil }
	if len(c.job.Ranks) < c.job.World || slices.ContainsFunc(c.job.Ranks, untold) {
		return "" // that one may have come later
	}
	arrivals := map[string]map[int]map[int]int64{} // by group, number and rank
	titles, ranks := map[string]string{}, map[string]map[int]bool{}
	host := ""
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			continue
		}
		if host != "" && r.Host != host {
			return ""
		}
		host = r.Host
		for _, e := range r.Dump.Entries {
			if e.P2P || e.Created == 0 {
				continue
			}
			if arrivals[e.Group] == nil {
				arrivals[e.Group], ranks[e.Group], titles[e.Group] = map[int]map[int]int64{}, map[int]bool{}, title(e)
			}
			if arrivals[e.Group][e.Seq] == nil {
				arrivals[e.Group][e.Seq] = map[int]int64{}
			}
			arrivals[e.Group][e.Seq][r.Rank] = e.Created
			ranks[e.Group][r.Rank] = true
		}
	}
	for _, group := range slices.Sorted(maps.Keys(arrivals)) {
		var all []map[int]int64 // of the latest that all ranks have come to
		for _, seq := range slices.Backward(slices.Sorted(maps.Keys(arrivals[group]))) {
			if times := arrivals[group][seq]; len(times) == len(ranks[group]) && len(times) > 1 && len(all) < latest {
				all = append(all, times)
			}
		}
		if rank, by := lastOf(all); len(all) == latest && by >= leastLag {
			return fmt.Sprintf("; rank %d came last to each of the last %d collectives of %s, at least %s after the others", rank, latest, titles[group], by.Round(time.Millisecond))
		}
	}
	return ""
}

// lastOf returns the rank that came last each time, and by how much at least; 0 if it was not always the same.
func lastOf(all []map[int]int64) (rank int, by time.Duration) {
	for i, times := range all {
		order := slices.SortedFunc(maps.Keys(times), func(a, b int) int { return cmp.Compare(times[b], times[a]) })
		lag := time.Duration(times[order[0]] - times[order[1]])
		if i > 0 && order[0] != rank {
			return 0, 0
		}
		if rank = order[0]; i == 0 || lag < by {
			by = lag
		}
	}
	return rank, by
}
