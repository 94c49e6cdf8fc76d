// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// TestSlowest: of a job that does not hang the rank is named that comes last each time, and no other.
func TestSlowest(t *testing.T) {
	t.Parallel()
	const lag = 300 * time.Millisecond
	// rank makes one that came to each of some collectives so much later than it began.
	rank := func(n, collectives int, later func(seq int) time.Duration) Rank {
		r := edit(at(n, "step", 5), func(r *Rank) { r.Moved, r.Host, r.Dump = true, "a", &torchdump.Dump{} })
		for seq := 1; seq <= collectives; seq++ {
			at := time.Unix(1000, 0).Add(time.Duration(seq)*time.Second + later(seq))
			r.Dump.Entries = append(r.Dump.Entries, torchdump.Entry{Group: "0", Desc: "default_pg", Seq: seq, Op: "all_reduce", Created: at.UnixNano()})
		}
		return r
	}
	never := func(int) time.Duration { return 0 }
	always := func(int) time.Duration { return lag }
	const names = "; rank 1 came last to each of the last 8 collectives of default_pg, at least 300ms after the others"
	for name, c := range map[string]struct {
		ranks []Rank
		named bool
	}{
		"one does not tell":  {[]Rank{rank(0, 20, never), rank(1, 20, always), edit(at(2, "step", 5), func(r *Rank) { r.Moved, r.Host = true, "a" })}, false},
		"one was not seen":   {[]Rank{rank(0, 20, never), rank(1, 20, always), rank(3, 20, never)}, false},
		"one has ended":      {[]Rank{rank(0, 20, never), rank(1, 20, always), {Rank: 2, Process: Process{Gone: Succeeded}}}, true},
		"always":             {[]Rank{rank(0, 20, never), rank(1, 20, always), rank(2, 20, never)}, true},
		"one is ahead":       {[]Rank{rank(0, 21, never), rank(1, 20, always), rank(2, 20, never)}, true},
		"lately":             {[]Rank{rank(0, 20, never), rank(1, 20, func(seq int) time.Duration { return lag * time.Duration(min(1, seq/13)) }), rank(2, 20, never)}, true},
		"in turn":            {[]Rank{rank(0, 20, func(seq int) time.Duration { return 2 * lag * time.Duration(seq%2) }), rank(1, 20, always), rank(2, 20, never)}, false},
		"hardly":             {[]Rank{rank(0, 20, never), rank(1, 20, func(int) time.Duration { return time.Millisecond }), rank(2, 20, never)}, false},
		"too few":            {[]Rank{rank(0, 7, never), rank(1, 7, always)}, false},
		"no other recorder":  {[]Rank{at(0, "step", 5), rank(1, 20, always)}, false},
		"on different hosts": {[]Rank{rank(0, 20, never), edit(rank(1, 20, always), func(r *Rank) { r.Host = "b" })}, false},
	} {
		v := Judge(Job{World: c.ranks[len(c.ranks)-1].Rank + 1, Ranks: c.ranks})
		if v.Hung || strings.Contains(v.Sentence, names) != c.named || strings.Contains(v.Sentence, "came last") != c.named {
			t.Errorf("%s: %s", name, v.Sentence)
		}
	}
}

// TestLastOf: seconds between ranks are more nanoseconds than an int has room for on a machine of 32 bits.
func TestLastOf(t *testing.T) {
	t.Parallel()
	if rank, by := lastOf([]map[int]int64{{0: 0, 1: int64(3 * time.Second), 2: 1}}); rank != 1 || by != 3*time.Second-1 {
		t.Errorf("rank %d by %s", rank, by)
	}
}
