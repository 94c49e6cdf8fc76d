// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

// over takes the end of a rank's start. When all have ended, the next world starts, or the same again.
func (g *starter) over(err error) {
	w := g.w
	if g.phase == "well" || g.phase == "failed" {
		return
	}
	g.phase, g.err, g.ended = "well", err, w.now
	if err != nil {
		g.phase = "failed"
	}
	w.note("%s has started in round %d: %v", g.name, g.round, err)
	if !w.ended() {
		return
	}
	w.judge()
	if w.left > 0 && w.wrong == nil {
		w.after(5*time.Second, w.attempt)
	}
}

func (w *startSim) ended() bool {
	return !slices.ContainsFunc(w.ranks, func(g *starter) bool { return g.phase != "well" && g.phase != "failed" })
}

// judge looks at a start that has ended.
func (w *startSim) judge() {
	names := []Worker{}
	for _, g := range w.ranks {
		names = append(names, Worker{g.name, g.rank})
	}
	well := 0
	for _, g := range w.ranks {
		if g.ended > w.until+3*time.Second {
			w.fault("%s ends %v after its time", g.name, g.ended-w.until)
		}
		if g.phase != "well" {
			continue
		}
		well++
		if g.round != w.ranks[0].round && w.ranks[0].phase == "well" {
			w.fault("%s has started in round %d, %s in round %d", g.name, g.round, w.ranks[0].name, w.ranks[0].round)
		}
		if !g.py && (!slices.Equal(g.listed, names) || len(g.knows) != len(names)-1) {
			w.fault("%s knows %v, and the addresses of %v", g.name, g.listed, g.knows)
		}
	}
	switch {
	case w.dynamic:
		for _, g := range w.ranks {
			if cohort.CodeOf(g.err) != cohort.Mismatch || g.ended-max(g.begun, w.stalled) > w.slow(5*time.Second) {
				w.fault("a dynamic world is in the way, and the start of %s ends after %v with %v", g.name, g.ended-g.begun, g.err)
			}
		}
		w.ends["dynamic"]++
		w.left = 0
	case well == len(w.ranks):
		if !w.faults && w.ranks[0].round < fewRounds+farRounds && w.now > w.came+w.slow(15*time.Second) {
			w.fault("all have come at %v, and have started at %v", w.came, w.now)
		}
		w.ends["well"]++
		w.left--
		w.failed = 0
	case w.spoilt:
		w.ends["failed"]++
		w.failed++
		w.signs = w.mixed
	default:
		for _, g := range w.ranks {
			if g.err != nil {
				w.fault("%s cannot start: %v", g.name, g.err)
			}
		}
	}
}

// monitorsReplaced checks that a monitor that is alive is not replaced, if nothing takes long. One that is not needed
// any more removes its key: a rank that comes then replaces none.
func (w *startSim) monitorsReplaced(key, was, value string) {
	if w.faults || w.latest > 2*time.Millisecond || !strings.HasSuffix(key, "/"+keyMonitor) || was == "" || value == "" {
		return
	}
	old, _, _ := strings.Cut(was, ".")
	who, _, _ := strings.Cut(value, ".")
	if who != old && w.ranks[old[0]-'0'].phase == "start" {
		w.fault("rank %s takes the place of the monitor %s", who, old)
	}
}
