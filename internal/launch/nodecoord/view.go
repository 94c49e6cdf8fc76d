// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
)

// While a job on several nodes is watched, the first nodes send the host the state of their ranks each second, and
// the host passes it on to the viewers. Ages travel in place of times, because clocks differ.

const (
	// ViewEvery is how often nodes send the state of their ranks, and how often it is passed on.
	ViewEvery = time.Second
	// MaxShown bounds the ranks and the waits that one node sends, maxViewed those of all nodes together.
	MaxShown, maxViewed = 1024, 4096
	// MaxShownText bounds each text that one node sends.
	MaxShownText = 200
	// MaxShownTexts bounds all of them.
	MaxShownTexts = 32 << 10
	// maxView bounds a view, so that it fits into a message.
	maxView = MaxMessage / 2
)

type (
	// Shown is the state of the ranks of a node.
	Shown struct {
		Attempt int         `json:"attempt"`
		Node    int         `json:"node"`
		Ranks   []ShownRank `json:"ranks"`
		Waits   []ShownWait `json:"waits,omitempty"`
	}
	// ShownRank is the state of a rank. Phase is a launch.WorkerPhase.
	ShownRank struct {
		Rank  cohort.Rank   `json:"rank"`
		Phase int           `json:"phase"`
		Age   time.Duration `json:"age"`
		Quiet time.Duration `json:"quiet"` // since it printed something; negative: it never did
		Words string        `json:"words,omitempty"`
		Line  string        `json:"line,omitempty"`
		// Section, Entered and Steps are what the rank says of itself: where it is, for how long, and its steps.
		Section string        `json:"section,omitempty"`
		Entered time.Duration `json:"entered,omitempty"`
		Steps   uint64        `json:"steps,omitempty"`
	}
	// ShownWait is a rank that waits for a key of the store.
	ShownWait struct {
		Rank cohort.Rank   `json:"rank"`
		Key  string        `json:"key"`
		Age  time.Duration `json:"age"`
	}
	// View is the state of the ranks of all nodes.
	View struct {
		Nodes []*Shown `json:"nodes"`
	}
)

// keepShown keeps the state of a node's ranks for the viewers. What it says of ranks that are not its own is left out.
func (h *Host) keepShown(c *conn, m *Shown) {
	if m.Attempt != h.attempt || len(m.Ranks) > MaxShown || len(m.Waits) > MaxShown {
		return
	}
	first, n := h.ranks(c)
	foreign := func(r cohort.Rank) bool { return r < first || r >= first+cohort.Rank(n) }
	m.Node = c.place
	m.Ranks = slices.DeleteFunc(m.Ranks, func(r ShownRank) bool { return foreign(r.Rank) })
	m.Waits = slices.DeleteFunc(m.Waits, func(w ShownWait) bool { return foreign(w.Rank) })
	if n > 0 {
		c.shown, h.shownNew = m, true
	}
}

// watched reports whether some node watches the job.
func (h *Host) watched() bool {
	for _, c := range h.nodes {
		if c.join.Watches {
			return true
		}
	}
	return false
}

// sendView sends the viewers what has been kept. One that reads too slowly gets the latest.
func (h *Host) sendView() {
	if !h.shownNew || !h.watched() {
		return
	}
	h.shownNew = false
	var all []*Shown
	for _, c := range h.nodes {
		if c.shown != nil && c.shown.Attempt == h.attempt {
			all = append(all, c.shown)
		}
	}
	slices.SortFunc(all, func(a, b *Shown) int { return a.Node - b.Node })
	view := &View{Nodes: bounded(all)}
	for _, c := range h.nodes {
		if c.join.Watches {
			c.out.show(view)
		}
	}
}

// bounded returns as many nodes as a view may have.
func bounded(all []*Shown) []*Shown {
	ranks, bytes := 0, 0
	for i, m := range all {
		ranks += len(m.Ranks)
		bytes += 64
		for _, r := range m.Ranks {
			bytes += 192 + 6*(len(r.Words)+len(r.Line)+len(r.Section)) // JSON may write six bytes for one
		}
		for _, w := range m.Waits {
			bytes += 64 + 6*len(w.Key)
		}
		if i >= MaxRoster || ranks > maxViewed || bytes > maxView {
			return all[:i]
		}
	}
	return all
}
