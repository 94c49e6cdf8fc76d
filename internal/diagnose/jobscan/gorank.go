// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// goRank is what a Go rank says of itself.
type goRank struct {
	dump       *torchdump.Dump // of its groups, or nil
	worker     *verdict.Worker // nil if it is none
	goroutines []stacks.Thread // nil if it does not answer
	moved      bool            // since it was asked before
	once       bool            // it has not answered again
}

// askGo asks a Go rank for its flight recorder, its calls and its goroutines.
func askGo(ctx context.Context, r Rank) goRank {
	var reply goRank
	for _, d := range traces(ctx, r) {
		if reply.dump == nil && len(d.Groups) > 0 {
			reply.dump = &torchdump.Dump{Version: "cohort", Members: map[string][]int{}}
		}
		if reply.dump != nil {
			addDump(reply.dump, d)
		}
		if d.Worker != nil {
			reply.worker = addWorker(reply.worker, d)
		}
	}
	reply.goroutines = askStacks(ctx, r)
	return reply
}

// askTwice asks a Go rank, and after a pause for its goroutines again: what has moved meanwhile does not hang.
func askTwice(ctx context.Context, r Rank, apart time.Duration) goRank {
	reply := askGo(ctx, r)
	if len(reply.goroutines) == 0 {
		return reply
	}
	select {
	case <-ctx.Done():
	case <-time.After(apart):
	}
	again := askStacks(ctx, r)
	if reply.once = len(again) == 0; reply.once {
		return reply
	}
	reply.moved = verdict.GoMoved(reply.goroutines, again)
	verdict.MarkServing(reply.goroutines, again)
	reply.goroutines = again
	return reply
}

// askStacks asks a Go rank for its goroutines; none if it does not answer.
func askStacks(ctx context.Context, r Rank) []stacks.Thread {
	for _, text := range askRank(ctx, r, "stacks") {
		return stacks.ParseGo(string(text))
	}
	return nil
}

// addWorker adds what one worker of a process waits for to what another does: the one that waits longest counts.
func addWorker(to *verdict.Worker, from flightrec.Dump) *verdict.Worker {
	w := &verdict.Worker{Name: from.Worker.Name}
	for _, x := range from.Worker.Calls {
		w.Calls = append(w.Calls, verdict.Call{Op: x.Op, Func: x.Func, To: x.To, Rank: x.ToID, Age: max(0, from.Time.Sub(x.Since))})
	}
	if to != nil && (len(w.Calls) == 0 || len(to.Calls) > 0 && to.Calls[0].Age >= w.Calls[0].Age) {
		return to
	}
	return w
}

// Goroutines asks a Go rank for the stacks of its goroutines as text, and says in a few words where it is; both are empty where there is
// no answer.
func Goroutines(ctx context.Context, r Rank) (text, where string) {
	answers := askRank(ctx, r, "stacks")
	if len(answers) == 0 {
		return "", ""
	}
	text = string(answers[0])
	if main := verdict.MainGoroutine(stacks.ParseGo(text)); main != nil {
		where = verdict.Where(main.Frames, nil)
	}
	return text, where
}

// traces asks a Go rank for the dumps of its flight recorder, one for each world that it is in.
func traces(ctx context.Context, r Rank) []flightrec.Dump {
	var all []flightrec.Dump
	for _, data := range askRank(ctx, r, "trace") {
		if d, err := flightrec.Parse(data); err == nil {
			all = append(all, d)
		}
	}
	return all
}

func askRank(ctx context.Context, r Rank, text string) [][]byte {
	dir := controlsock.Folder(func(name string) string { return r.env[name] })
	if dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	// The process may see another root than we do.
	q := question{What: askSockets, Path: dir, Below: "root", Prefix: controlsock.Prefix(ownPID("/proc", r.PID)), Text: text}
	return r.ask(ctx, q).Texts
}

// addDump writes a dump of a Go rank as one of PyTorch's: the two can be compared then, in a job that has both.
func addDump(to *torchdump.Dump, from flightrec.Dump) {
	for _, g := range from.Groups {
		desc := g.Description
		if g.Group == "0" && desc == "" {
			desc = "default_pg"
		}
		to.Members[g.Group] = g.GlobalRanks
		for _, e := range g.Entries {
			entry := torchdump.Entry{
				//nolint:gosec // numbers of collectives
				Group: g.Group, Desc: desc, Seq: int(e.Seq) + 1, Backend: "cohort", Op: e.Op, P2P: e.P2P,
				Open: e.State == flightrec.Posted || e.State == flightrec.Started,
				// PyTorch counts from 1.
				Created: e.Posted.UnixNano(), Sizes: flightrec.Bytes(max(e.In, e.Out)), Types: e.DType, Peer: e.Peer,
			}
			if e.Peer >= 0 && e.Peer < len(g.GlobalRanks) {
				entry.Peer = g.GlobalRanks[e.Peer]
			}
			to.Entries = append(to.Entries, entry)
		}
	}
}
