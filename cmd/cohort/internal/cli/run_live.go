// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/runflags"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/signame"
	"github.com/cohort-dist/cohort/launch"
)

// live lets a job of several workers show what it does at the bottom of the terminal. The function it returns ends that.
func (a *app) live(o runflags.Options, s *launch.Screen) (end func()) {
	out, _ := a.Out.(*os.File)
	if o.NoLive || o.Workers == 1 && o.Nodes.Max <= 1 || !tui.IsTerminal(a.Out) || a.Getenv("TERM") == "dumb" {
		return func() {}
	}
	view := tui.NewLive(out, func() (int, int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 || tui.InBackground(out) {
			return 0, 0
		}
		return width, height
	})
	s.Out, s.Ranks = view, s.Ranks || o.RankPrefix == "auto"
	if tui.IsTerminal(a.Err) {
		s.Err = view
	}
	style := tui.StyleFor(a.Out, a.Getenv)
	s.Show = func(status launch.Status) {
		job := jobView(status, time.Now())
		view.Set(func(width, height int) []string { return job.Lines(width, height, style) })
	}
	signals, _ := signame.Parse(o.SignalNames) // the launcher says what is wrong with them
	endSuspends := tui.Suspends(view, signals)
	return sync.OnceFunc(func() {
		endSuspends()
		view.Close()
	})
}

// jobView says what to show of a job.
func jobView(s launch.Status, now time.Time) tui.Job {
	j := tui.Job{
		Program: s.Program, Elapsed: now.Sub(s.Started), Attempt: s.Attempt, Restarts: s.MaxRestarts, World: s.World, Node: s.Node,
		Gathering: gatheringWords(s.Gathering, now),
	}
	for _, n := range s.Nodes {
		j.Nodes = append(j.Nodes, tui.JobNode{Host: n.Host, Base: int(n.Base), Workers: n.Workers})
	}
	j.Unknown = max(0, s.World-len(s.Ranks)-len(s.Others))
	everywhere := slices.Concat(s.Ranks, s.Others)
	slices.SortFunc(everywhere, func(a, b launch.WorkerStatus) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, r := range everywhere {
		rank := tui.JobRank{Rank: int(r.Rank), Since: now.Sub(r.Since), Line: r.Line}
		if !r.Printed.IsZero() {
			rank.Quiet = now.Sub(r.Printed)
		}
		switch r.Phase {
		case launch.WorkerStarting:
			rank.Kind, rank.Words = tui.Ahead, "start"
		case launch.WorkerRunning:
			rank.Kind, rank.Words = tui.Playing, "run"
		case launch.WorkerStopping:
			rank.Kind, rank.Words = tui.Ahead, "are being stopped"
		case launch.WorkerDone:
			rank.Kind, rank.Words = tui.Done, "have exited"
		case launch.WorkerFailed:
			rank.Kind, rank.Words = tui.Failed, r.Words
		}
		j.Ranks = append(j.Ranks, rank)
	}
	for _, w := range slices.Concat(s.Waits, s.OtherWaits) {
		if !slices.Contains(j.Waiting, int(w.Rank)) { // launchers on one machine see the same
			j.Waiting = append(j.Waiting, int(w.Rank))
		}
		if age := now.Sub(w.Since); age > j.WaitingFor {
			j.WaitingFor, j.WaitingKey = age, w.Key
		}
	}
	slices.Sort(j.Waiting)
	return j
}

// gatheringWords says who is missing and since when.
func gatheringWords(g *launch.Gathering, now time.Time) string {
	if g == nil {
		return ""
	}
	wanted := strconv.Itoa(g.Max)
	if g.Min < g.Max {
		wanted = fmt.Sprintf("%d to %d", g.Min, g.Max)
	}
	text := fmt.Sprintf("%d of %s nodes are present for %s", g.Here, wanted, tui.Age(now.Sub(g.Since)))
	switch len(g.Missing) {
	case 0:
	case 1:
		text += fmt.Sprintf("; node %d is missing", g.Missing[0])
	default:
		text += "; nodes " + tui.Ranges(g.Missing) + " are missing"
	}
	return text
}
