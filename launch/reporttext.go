// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// Text returns the report for people. paint, if set, makes a heading stand out.
func (r *Report) Text(paint func(string) string) string {
	if paint == nil {
		paint = func(s string) string { return s }
	}
	if r.Succeeded {
		return ""
	}
	heading := r.Sentence
	if !strings.HasPrefix(heading, "the job ") {
		heading = "the job failed: " + heading
	}
	return paint("cohort: "+printable.Line(heading)) + "\n" + printable.Lines(r.details(true))
}

// Short returns the report for people in at most limit bytes, the sentence first, for a place that keeps no more. Of a long traceback it
// has the end.
func (r *Report) Short(limit int) string {
	if r.Succeeded {
		return shorten("the job succeeded\n", limit)
	}
	text := r.short(true)
	if len(text) <= limit {
		return text
	}
	trace := ""
	if first := r.first(); first != nil {
		trace = printable.Lines(first.printed(40))
	}
	const heading, margin = "  the end of what it printed:\n", "    "
	room := 0
	if trace != "" {
		room = min(limit/2, len(heading)+len(indent(trace, margin))+1)
	}
	text = shorten(r.short(false), limit-room)
	lines := strings.Split(indent(trace, margin), "\n")
	left, from := limit-len(text)-len(heading), len(lines)
	for from > 0 && left > len(lines[from-1]) {
		from--
		left -= len(lines[from]) + 1
	}
	if trace == "" || from == len(lines) {
		return text
	}
	return text + heading + strings.Join(lines[from:], "\n") + "\n"
}

// shorten cuts a text to a number of bytes, between two letters.
func shorten(text string, limit int) string {
	const end = "...\n"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:max(0, limit-len(end))], "") + end[:min(len(end), max(0, limit))]
}

// first is the worker that failed first, nil if that is not why the job has ended.
func (r *Report) first() *WorkerEnd {
	if len(r.Attempts) == 0 {
		return nil
	}
	if last := &r.Attempts[len(r.Attempts)-1]; last.Signal == 0 && !last.Hung {
		return last.Of(last.First)
	}
	return nil
}

// short is the report below its sentence.
func (r *Report) short(printed bool) string {
	return printable.Line(r.Sentence) + "\n" + printable.Lines(r.details(printed))
}

// details are what the report has below its heading, with or without what the first worker printed.
func (r *Report) details(printed bool) string {
	var b strings.Builder
	if len(r.Attempts) == 0 {
		return b.String()
	}
	last := &r.Attempts[len(r.Attempts)-1]
	if first := r.first(); first != nil {
		describeFirst(&b, first, printed)
	}
	r.describeOthers(&b, last)
	if len(r.Attempts) > 1 {
		b.WriteString("  attempts:\n")
		for i := range r.Attempts {
			a := &r.Attempts[i]
			fmt.Fprintf(&b, "    %d: %s, after %s\n", a.Number, a.Sentence(), span(a.Started, a.Ended))
		}
	}
	if r.LogDir != "" {
		fmt.Fprintf(&b, "  logs: %s\n", r.LogDir)
	}
	if r.Bundle != "" {
		fmt.Fprintf(&b, "  evidence: %s\n", r.Bundle)
	}
	return b.String()
}

// printed is the traceback of a worker or, without one, the last lines of its stderr.
func (w *WorkerEnd) printed(lines int) string {
	if w.Traceback != "" {
		return w.Traceback
	}
	return lastLines(w.LastErr, lines)
}

func describeFirst(b *strings.Builder, w *WorkerEnd, printed bool) {
	fmt.Fprintf(b, "  rank %d (host %s, local rank %d", w.Rank, w.Host, w.Local)
	if w.PID != 0 {
		fmt.Fprintf(b, ", pid %d", w.PID)
	}
	fmt.Fprintf(b, "): %s", postmortem.Code(w.Code))
	if !w.Started.IsZero() {
		fmt.Fprintf(b, ", after %s", span(w.Started, w.Ended))
	}
	if w.Where != "" {
		fmt.Fprintf(b, ", in %s", w.Where)
	}
	b.WriteString("\n")
	if text := w.printed(10); text != "" && printed {
		b.WriteString("\n" + indent(text, "    ") + "\n\n")
	}
	if w.Advice != "" {
		fmt.Fprintf(b, "  try: %s\n", w.Advice)
	}
}

// describeOthers says what became of the other ranks, those with the same outcome in one line.
func (r *Report) describeOthers(b *strings.Builder, a *Attempt) {
	fates := map[string][]cohort.Rank{}
	var order []string
	for _, w := range a.Workers {
		if w.Rank == a.First && a.Signal == 0 && !a.Hung {
			continue
		}
		outcome := strings.TrimPrefix(w.Words, "was ")
		if w.Where != "" {
			outcome += ", in " + w.Where
		} else if s := a.doing(w.Rank); s != nil {
			outcome += ", in " + s.Doing
		}
		if fates[outcome] == nil {
			order = append(order, outcome)
		}
		fates[outcome] = append(fates[outcome], w.Rank)
	}
	if len(order) == 0 {
		return
	}
	heading := "  the others:\n"
	if a.Of(a.First) == nil || a.Signal != 0 || a.Hung {
		heading = "  the ranks:\n"
	}
	b.WriteString(heading)
	for _, outcome := range order {
		ranks := fates[outcome]
		slices.Sort(ranks)
		fmt.Fprintf(b, "    %s: %s%s\n", ranklist.Named(ranks), outcome, a.since(ranks))
	}
}

// doing returns what a rank was doing that had to be stopped, or nil if that is not known.
func (a *Attempt) doing(rank cohort.Rank) *RankState {
	s, w := a.Evidence.Of(rank), a.Of(rank)
	if s == nil || s.Doing == "" || w.Where != "" {
		return nil
	}
	if w.Kind == postmortem.Stopped.String() || a.Signal != 0 && w.Code != 0 { // some answer to a signal with an error of their own
		return s
	}
	return nil
}

// since says how long at least ranks had been where they were when the first failure came; "" if that is not known of
// all, or too short to matter.
func (a *Attempt) since(ranks []cohort.Rank) string {
	var least, most time.Duration
	for i, rank := range ranks {
		s := a.doing(rank)
		if s == nil || s.Idle < time.Second {
			return ""
		}
		if i == 0 || s.Idle < least {
			least = s.Idle
		}
		most = max(most, s.Idle)
	}
	if from, to := int(least.Seconds()), int(most.Seconds()); from != to {
		return fmt.Sprintf(" for at least %d to %d s", from, to)
	}
	return fmt.Sprintf(" for at least %d s", int(least.Seconds()))
}

func span(from, to time.Time) string {
	d := to.Sub(from)
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}
