// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// shareStatus sends the host the state of this node's ranks until ctx ends, and then once more.
func (a *attempt) shareStatus(ctx context.Context) {
	tick := time.NewTicker(nodecoord.ViewEvery)
	defer tick.Stop()
	asked := time.Now()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			if a.job.screen.Show == nil && time.Since(asked) > waitsEvery { // else show does
				a.job.scanWorkers(ctx)
				asked = time.Now()
			}
		case <-ctx.Done():
		}
		failpoint.At("agent.view.show")
		shown := a.job.board.snapshot().shown(time.Now())
		if shown.Attempt == a.place.attempt {
			a.member.send(nodecoord.Message{Shown: &shown})
		}
	}
}

// shown returns what other nodes are sent.
func (s Status) shown(now time.Time) nodecoord.Shown {
	m := nodecoord.Shown{Attempt: s.Attempt, Node: s.Node}
	left := nodecoord.MaxShownTexts
	shortened := func(text string) string {
		text = strings.ToValidUTF8(text[:min(len(text), nodecoord.MaxShownText, left)], "")
		left -= len(text)
		return text
	}
	for _, r := range s.Ranks[:min(len(s.Ranks), nodecoord.MaxShown)] {
		r.refresh()
		to := nodecoord.ShownRank{
			Rank: r.Rank, Phase: int(r.Phase), Age: now.Sub(r.Since), Quiet: -1, Words: shortened(r.Words),
			Line: shortened(r.Line), Section: shortened(r.Section), Steps: r.Steps,
		}
		if r.Section != "" {
			to.Entered = max(0, now.Sub(r.Entered))
		}
		if !r.Printed.IsZero() {
			to.Quiet = max(0, now.Sub(r.Printed))
		}
		m.Ranks = append(m.Ranks, to)
	}
	for _, w := range s.Waits[:min(len(s.Waits), nodecoord.MaxShown)] {
		m.Waits = append(m.Waits, nodecoord.ShownWait{Rank: w.Rank, Key: shortened(w.Key), Age: now.Sub(w.Since)})
	}
	return m
}

// refresh fills in what a worker has printed where no screen takes each piece.
func (r *WorkerStatus) refresh() {
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
	if r.Phase == WorkerRunning || r.Phase == WorkerStopping {
		r.Line = r.line()
	}
}

// line is what a worker has printed of lines that are not finished.
func (r *WorkerStatus) line() string { return strings.TrimSpace(r.lines[0] + " " + r.lines[1]) }

// others takes what other nodes send. What is of another attempt is old.
func (b *board) others(m *nodecoord.View, now time.Time) {
	b.change(func(s *Status) {
		var ranks []WorkerStatus
		var waits []StoreWait
		for _, n := range m.Nodes {
			if n == nil || n.Attempt != s.Attempt || n.Node == s.Node || s.World == 0 {
				continue
			}
			for _, r := range n.Ranks {
				to := WorkerStatus{
					Rank: r.Rank, Phase: WorkerPhase(r.Phase), Since: now.Add(-r.Age), Words: r.Words, Line: r.Line,
					Section: r.Section, Entered: now.Add(-r.Entered), Steps: r.Steps,
				}
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
