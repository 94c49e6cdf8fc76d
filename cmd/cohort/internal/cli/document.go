// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/diagnose/jobdoc"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/launch"
)

// printJob writes a job as cohort.job.v1 with --json, else text.
func (a *app) printJob(d *jobdoc.Document, text string) error {
	if a.JSON {
		return writeDocument(a.Out, d)
	}
	return a.PrintText(text)
}

// writeDocument writes a job as one line of JSON.
func writeDocument(w io.Writer, d any) error {
	text, err := json.Marshal(d)
	if err == nil {
		_, err = w.Write(append(printable.Document(text), '\n'))
	}
	return err
}

// printWhy says why a job hangs: one that was found on this host, one of which the store or dumps were seen. id names it.
func (a *app) printWhy(source, id string, seen verdict.Job) error {
	v := verdict.Judge(seen)
	d := jobdoc.FromLook(source, seen, v)
	d.Job.ID = id
	title := map[string]string{jobdoc.Live: "job " + id, jobdoc.Store: "store " + id, jobdoc.Dumps: "dumps"}[source]
	if source == jobdoc.Store {
		d.Job.ID, d.Job.Store = "", id
	}
	style := tui.StyleFor(a.Out, a.Getenv)
	lines := []string{style.Dim(printable.Line(title) + ":"), style.Bold(printable.Line(v.Sentence))}
	for _, line := range v.Proof {
		lines = append(lines, "  "+printable.Line(line))
	}
	return a.printJob(d, strings.Join(lines, "\n"))
}

// printDumps says why a job hangs whose ranks are Go, by their flight recorders.
func (a *app) printDumps(v flightrec.Diagnosis) error {
	if !a.JSON {
		return a.printVerdict(v, false)
	}
	hung := v.Finding != flightrec.InStep && v.Finding != flightrec.NoDump && v.Finding != flightrec.Behind
	d := &jobdoc.Document{Schema: jobdoc.Schema, Source: jobdoc.Dumps, Job: jobdoc.Job{
		State:   map[bool]string{true: jobdoc.Hung, false: jobdoc.Running}[hung],
		Verdict: &jobdoc.Verdict{Sentence: v.Sentence, Hung: hung, Sure: true, Culprits: ranklist.Short(v.Ranks), Proof: v.Notes},
	}}
	return a.printJob(d, "")
}

// printBundle shows the report in a folder of evidence.
func (a *app) printBundle(r *launch.Report) error {
	if !a.JSON {
		return a.PrintText(strings.TrimSuffix(r.Text(nil), "\n"))
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var d jobdoc.Document
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	d.Source = jobdoc.Bundle
	return a.printJob(&d, "")
}
