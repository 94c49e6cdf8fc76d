// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"fmt"
	"slices"
	"strconv"
)

// Table has a row for each rank; the ranks that the verdict names are marked.
func (g groupDiagnosis) Table(verbose bool) [][]string {
	rows := [][]string{{"", "RANK", "PROCESS", "COMPLETE", "POSTED", "WAITS", "IN"}}
	mark := func(rank int) string {
		if g.Finding != InStep && slices.Contains(g.Ranks, rank) {
			return ">"
		}
		return ""
	}
	number := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return "#" + strconv.FormatInt(n, 10)
	}
	for _, m := range g.Members {
		process := m.Host
		if m.PID != 0 {
			process = strconv.Itoa(m.PID) + "@" + m.Host
		}
		row := []string{mark(m.Rank), strconv.Itoa(m.Rank), process, number(m.LastCompleted), number(m.LastPosted), "-", ""}
		doing := m.Doing
		if !verbose {
			doing = doing[:min(1, len(doing))]
		}
		for i := range doing {
			if i > 0 {
				row = []string{"", "", "", "", "", "", ""}
			}
			row[5], row[6] = span(doing[i].Wait), doing[i].Text
			if doing[i].Err != "" {
				row[6] += ": " + doing[i].Err
			}
			rows = append(rows, row)
		}
		if len(doing) == 0 {
			rows = append(rows, row)
		}
	}
	for _, r := range g.Missing {
		rows = append(rows, []string{mark(r), strconv.Itoa(r), "no dump", "", "", "", ""})
	}
	return rows
}

// WorkerTable has a row for each RPC worker.
func WorkerTable(all []workerView) [][]string {
	rows := [][]string{{"WORKER", "PROCESS", "WAITS", "FOR"}}
	for _, w := range all {
		row := []string{w.Name, strconv.Itoa(w.PID) + "@" + w.Host, "-", w.Text}
		if w.Text != "" {
			row[2] = span(w.Wait)
		}
		if more := len(w.Calls) - 1 + w.More; more > 0 {
			row[3] += fmt.Sprintf(" (and %d more)", more)
		}
		rows = append(rows, row)
	}
	return rows
}
