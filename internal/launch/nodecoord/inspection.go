// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"sync"
	"time"

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
		// All of them asked the same store, and each knows the ranks of its own host, or each asked its own gateway.
		switch {
		case j.NodeWaits:
			out.Waits = append(out.Waits, j.Waits...)
		case len(out.Waits) == 0 || known(j) > known(out):
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

// Questions are those of one launcher to all others, through the host. The zero value is ready to use.
type Questions struct {
	mu struct {
		sync.Mutex
		last    int
		waiting map[int]chan *Answer
	}
}

// Ask makes a question to a number of nodes and returns where their answers arrive, until it is forgotten.
func (q *Questions) Ask(nodes int) (id int, answers <-chan *Answer, forget func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.waiting == nil {
		q.mu.waiting = map[int]chan *Answer{}
	}
	q.mu.last++
	id = q.mu.last
	ch := make(chan *Answer, nodes)
	q.mu.waiting[id] = ch
	return id, ch, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.mu.waiting, id)
	}
}

// Answered takes an answer of a node. One too many is dropped.
func (q *Questions) Answered(m *Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch := q.mu.waiting[m.ID]; ch != nil {
		select {
		case ch <- m:
		default: // a node that answers twice
		}
	}
}

// Presence is the question that the host answers by itself, with a list of [Contact]: when it last received from each node.
const Presence = "presence"

// Contact is a node of the current attempt, and how long ago its host received from it.
type Contact struct {
	Node int           `json:"node"` // its number
	PID  int           `json:"pid"`
	Ago  time.Duration `json:"ago"`
}

// presence answers a question for it. The most silent nodes are first, as the question is about them.
func (h *Host) presence(q Question) Message {
	var all []Contact
	for _, c := range h.nodes {
		if c.begun == h.attempt {
			all = append(all, Contact{Node: c.place, PID: c.join.PID, Ago: c.wire.Quiet()})
		}
	}
	slices.SortFunc(all, func(a, b Contact) int { return cmp.Or(cmp.Compare(b.Ago, a.Ago), cmp.Compare(a.Node, b.Node)) })
	answer, _ := json.Marshal(all[:min(len(all), MaxRoster)])
	return Message{Seen: &Answer{Question: q, Job: answer}}
}
