// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobdoc

import (
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// AddEvidence adds what a look has read of each rank beside what it does: stacks, and flight recorders unless they are left out.
func (d *Document) AddEvidence(j verdict.Job, recorders bool) {
	for i := range d.Ranks {
		for _, seen := range j.Ranks {
			if seen.Rank != d.Ranks[i].Rank || seen.PID != d.Ranks[i].PID {
				continue
			}
			d.Ranks[i].Stack = stackOf(seen)
			if recorders && seen.Dump != nil {
				d.Ranks[i].Recorder = recorderOf(seen.Dump)
			}
		}
	}
}

// stackOf is the text of all stacks of a rank.
func stackOf(r verdict.Rank) string {
	var b strings.Builder
	for _, t := range r.Threads {
		b.WriteString(t.String())
	}
	return b.String()
}

// recorderOf is a flight recorder as the document has it.
func recorderOf(dump *torchdump.Dump) []Op {
	all := make([]Op, 0, len(dump.Entries))
	for _, e := range dump.Entries {
		op := Op{
			Group: e.Group, Title: e.Desc, Backend: e.Backend, Op: e.Op, Number: e.Seq, Message: e.P2P, Open: e.Open, Sizes: e.Sizes,
			Types: e.Types, Where: e.Where,
		}
		if e.Created > 0 {
			op.CalledAt = At(time.Unix(0, e.Created))
		}
		if e.P2P && e.Peer >= 0 {
			op.Peer = new(e.Peer)
		}
		all = append(all, op)
	}
	return all
}

// nodesOf returns the hosts of ranks, in the order in which they come.
func nodesOf(ranks []Rank) []Node {
	var hosts []string
	on := map[string][]int{}
	for _, r := range ranks {
		if r.Host == "" {
			continue
		}
		if on[r.Host] == nil {
			hosts = append(hosts, r.Host)
		}
		on[r.Host] = append(on[r.Host], r.Rank)
	}
	var all []Node
	for _, host := range hosts {
		all = append(all, Node{Host: host, Ranks: ranklist.Short(on[host])})
	}
	return all
}
