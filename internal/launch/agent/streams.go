// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// screen is a Screen that the streams of all workers share.
type screen struct {
	Screen
	out, err *joblog.Output
	folds    [2]*joblog.Folding // of stdout and stderr, with Ranks
}

func newScreen(s Screen) *screen {
	if s.Out == nil {
		s.Out = io.Discard
	}
	if s.Err == nil {
		s.Err = io.Discard
	}
	sc := &screen{Screen: s}
	sc.out, sc.err = joblog.NewOutputs(s.Out, s.Err)
	return sc
}

// logf prints a message of the launcher, a line. It may hold names and words of other processes.
func (s *screen) logf(format string, args ...any) {
	_, _ = fmt.Fprintln(s.err, "cohort: "+printable.Line(fmt.Sprintf(format, args...)))
}

func (s *screen) output(which Streams) *joblog.Output {
	if which == streamOut {
		return s.out
	}
	return s.err
}

// begin prepares the screen for an attempt.
func (s *screen) begin(ranks int) {
	if s.Ranks {
		s.folds = [2]*joblog.Folding{joblog.NewFolding(s.out, ranks, s.Paint), joblog.NewFolding(s.err, ranks, s.Paint)}
	}
}

// end shows what still waits.
func (s *screen) end() {
	for _, f := range s.folds {
		if f != nil {
			f.Close()
		}
	}
}

// newFilters opens the files that hold selected lines of all teed ranks.
func newFilters(c Config, run *rundir.Dir, attempt int) (f [2]*joblog.Filter, err error) {
	for i, texts := range [][]string{c.StdoutFilters, c.StderrFilters} {
		if len(texts) == 0 || !anyOf(c.Tee) {
			continue
		}
		file, err := run.Create(attempt, []string{"filtered_stdout.log", "filtered_stderr.log"}[i])
		if err != nil {
			f[0].Close()
			return f, unavailable("a log file", err)
		}
		f[i] = joblog.NewFilter(file, texts)
	}
	return f, nil
}

// openStream prepares stream which of a worker.
func (a *attempt) openStream(w *worker, which Streams) (*joblog.Pipe, error) {
	tee := a.job.cfg.Tee[w.local]&which != 0
	redirect := a.job.cfg.Redirects[w.local]&which != 0
	var file *os.File
	if tee || redirect {
		var err error
		name := map[Streams]string{streamOut: "stdout.log", streamErr: "stderr.log"}[which]
		if file, err = a.job.run.Create(a.place.attempt, strconv.Itoa(w.local), name); err != nil {
			return nil, unavailable("a log file", err)
		}
	}
	return joblog.NewPipe(file, redirect && !tee)
}

// sink says where the lines of a stream go.
func (a *attempt) sink(w *worker, which Streams) *joblog.Stream {
	c, sc := a.job.cfg, a.job.screen
	index := int(which) - 1
	sink := &joblog.Stream{
		Shared:  len(a.workers) > 1,
		Writer:  w,
		Trouble: func(err error) { sc.logf("the log of rank %d cannot be written: %v; the job goes on", w.rank, err) },
	}
	tee := c.Tee[w.local]&which != 0
	if tee {
		sink.Prefix = []byte(a.prefix(w))
		a.filters[index].Apply(sink)
	}
	if sc.Show != nil {
		sink.Live = func(line []byte) { a.job.board.printed(w.local, index, line) }
	}
	switch {
	case !c.shown(w.local):
	case sc.Ranks && !tee:
		sink.Lines = func(line []byte) { sc.folds[index].Add(w.rank, line) }
	default:
		sink.Screen = sc.output(which)
		// What moves the cursor of a terminal must not reach the lines of others, and a bar must not cover its prefix.
		sink.Drawn = sc.Show != nil || len(sink.Prefix) > 0 || sink.Shared && sink.Screen.Terminal()
	}
	return sink
}

// prefix is what stands before the lines of a teed stream.
func (a *attempt) prefix(w *worker) string {
	host, _ := os.Hostname()
	role, _ := a.job.cfg.roleOf(w.local)
	return substitute(a.job.cfg.Prefix, map[string]string{
		"role_name": role.Name, "local_rank": strconv.Itoa(w.local), "rank": w.rank.String(), "hostname": host,
	})
}
