// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/moment"
)

// While somebody looks at a job on several nodes, the first nodes tell the host the state of their ranks each second, and
// the host passes it on to those who look. Ages travel in place of times, because clocks differ.

const (
	// viewEvery is how often nodes tell the state of their ranks, and how often it is passed on.
	viewEvery = time.Second
	// maxShown bounds the ranks and the waits that one node tells, maxViewed those of all nodes together.
	maxShown, maxViewed = 1024, 4096
	// maxShownText bounds each text that one node tells, and maxShownTexts all of them.
	maxShownText, maxShownTexts = 200, 32 << 10
	// maxView bounds a view, so that it fits into a message.
	maxView = maxMessage / 2
)

type (
	// shownMessage is the state of the ranks of a node.
	shownMessage struct {
		Attempt int         `json:"attempt"`
		Node    int         `json:"node"`
		Ranks   []shownRank `json:"ranks"`
		Waits   []shownWait `json:"waits,omitempty"`
	}
	shownRank struct {
		Rank  int           `json:"rank"`
		Phase WorkerPhase   `json:"phase"`
		Age   time.Duration `json:"age"`
		Quiet time.Duration `json:"quiet"` // since it printed something; negative: it never did
		Words string        `json:"words,omitempty"`
		Line  string        `json:"line,omitempty"`
	}
	shownWait struct {
		Rank int           `json:"rank"`
		Key  string        `json:"key"`
		Age  time.Duration `json:"age"`
	}
	viewMessage struct {
		Nodes []*shownMessage `json:"nodes"`
	}
)

// showOthers tells the host the state of this node's ranks until ctx ends, and then once more.
func (a *attempt) showOthers(ctx context.Context) {
	tick := time.NewTicker(viewEvery)
	defer tick.Stop()
	asked := time.Now()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			if a.job.screen.Show == nil && time.Since(asked) > waitsEvery { // else show does
				a.job.lookForWaits(ctx)
				asked = time.Now()
			}
		case <-ctx.Done():
		}
		moment.At("launch.view.show")
		shown := a.job.board.snapshot().shown(time.Now())
		if shown.Attempt == a.place.attempt {
			a.member.say(message{Shown: &shown})
		}
	}
}

// shown returns what other nodes are told.
func (s Status) shown(now time.Time) shownMessage {
	m := shownMessage{Attempt: s.Attempt, Node: s.Node}
	left := maxShownTexts
	shortened := func(text string) string {
		text = strings.ToValidUTF8(text[:min(len(text), maxShownText, left)], "")
		left -= len(text)
		return text
	}
	for _, r := range s.Ranks[:min(len(s.Ranks), maxShown)] {
		r.look()
		to := shownRank{Rank: r.Rank, Phase: r.Phase, Age: now.Sub(r.Since), Quiet: -1, Words: shortened(r.Words), Line: shortened(r.Line)}
		if !r.Printed.IsZero() {
			to.Quiet = max(0, now.Sub(r.Printed))
		}
		m.Ranks = append(m.Ranks, to)
	}
	for _, w := range s.Waits[:min(len(s.Waits), maxShown)] {
		m.Waits = append(m.Waits, shownWait{Rank: w.Rank, Key: shortened(w.Key), Age: now.Sub(w.Since)})
	}
	return m
}

// look fills in what a worker has printed where no screen has had a look at each piece.
func (r *WorkerStatus) look() {
	if !r.Printed.IsZero() {
		return
	}
	for i, tail := range r.tails {
		if tail == nil {
			continue
		}
		line, at := tail.Live()
		r.lines[i] = line
		if at.After(r.Printed) {
			r.Printed = at
		}
	}
	if r.Phase == WorkerRuns || r.Phase == WorkerStopping {
		r.Line = r.line()
	}
}

// line is what a worker has printed of lines that are not finished.
func (r *WorkerStatus) line() string { return strings.TrimSpace(r.lines[0] + " " + r.lines[1]) }

// keepShown keeps the state of a node's ranks for those who look.
func (h *host) keepShown(c *hostConn, m *shownMessage) {
	if m.Attempt == h.attempt && len(m.Ranks) <= maxShown && len(m.Waits) <= maxShown {
		c.shown, h.shownNew = m, true
	}
}

// watched reports whether some node looks at the job.
func (h *host) watched() bool {
	for _, c := range h.nodes {
		if c.join.Watches {
			return true
		}
	}
	return false
}

// tellView tells those who look what has been kept. One who reads too slowly gets the latest.
func (h *host) tellView() {
	if !h.shownNew || !h.watched() {
		return
	}
	h.shownNew = false
	var all []*shownMessage
	for _, c := range h.nodes {
		if c.shown != nil && c.shown.Attempt == h.attempt {
			all = append(all, c.shown)
		}
	}
	slices.SortFunc(all, func(a, b *shownMessage) int { return a.Node - b.Node })
	view := &viewMessage{Nodes: bounded(all)}
	for _, c := range h.nodes {
		if c.join.Watches {
			c.out.show(view)
		}
	}
}

// bounded returns as many nodes as a view may have.
func bounded(all []*shownMessage) []*shownMessage {
	ranks, bytes := 0, 0
	for i, m := range all {
		ranks += len(m.Ranks)
		bytes += 64
		for _, r := range m.Ranks {
			bytes += 128 + 6*(len(r.Words)+len(r.Line)) // JSON may write six bytes for one
		}
		for _, w := range m.Waits {
			bytes += 64 + 6*len(w.Key)
		}
		if i >= maxRoster || ranks > maxViewed || bytes > maxView {
			return all[:i]
		}
	}
	return all
}

// others takes what other nodes tell. What is of another attempt is old.
func (b *board) others(m *viewMessage, now time.Time) {
	b.change(func(s *Status) {
		var ranks []WorkerStatus
		var waits []StoreWait
		for _, n := range m.Nodes {
			if n == nil || n.Attempt != s.Attempt || n.Node == s.Node || s.World == 0 {
				continue
			}
			for _, r := range n.Ranks {
				to := WorkerStatus{Rank: r.Rank, Phase: r.Phase, Since: now.Add(-r.Age), Words: r.Words, Line: r.Line}
				if r.Quiet >= 0 {
					to.Printed = now.Add(-r.Quiet)
				}
				ranks = append(ranks, to)
			}
			for _, w := range n.Waits {
				waits = append(waits, StoreWait{Rank: w.Rank, Key: w.Key, Since: now.Add(-w.Age)})
			}
		}
		s.Others, s.OtherWaits = ranks, waits
	})
}
