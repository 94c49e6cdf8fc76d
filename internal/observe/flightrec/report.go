// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// document is a diagnosis as programs read it: cohort.trace.v1.
type document struct {
	Finding  Finding          `json:"finding"`
	Sentence string           `json:"sentence"`
	Ranks    string           `json:"ranks,omitempty"`
	Groups   []groupDocument  `json:"groups"`
	Workers  []workerDocument `json:"workers,omitempty"`
	Notes    []string         `json:"notes,omitempty"`
}

type groupDocument struct {
	Group       string           `json:"group"`
	Description string           `json:"description,omitempty"`
	Size        int              `json:"size"`
	Transport   string           `json:"transport,omitempty"`
	Finding     Finding          `json:"finding"`
	Sentence    string           `json:"sentence"`
	Ranks       string           `json:"ranks,omitempty"`
	Missing     string           `json:"missing,omitempty"`
	Members     []memberDocument `json:"members"`
}

type memberDocument struct {
	Rank      int    `json:"rank"`
	GroupRank int    `json:"group_rank"`
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Status
	Doing  []pendingDocument `json:"doing,omitempty"`
	Failed string            `json:"failed,omitempty"`
}

type pendingDocument struct {
	Op      string  `json:"op"`
	Number  uint64  `json:"number"`
	Message bool    `json:"message,omitempty"`
	Text    string  `json:"text"`
	WaitS   float64 `json:"wait_s"`
	State   string  `json:"state"`
}

type workerDocument struct {
	Name    string  `json:"name"`
	Host    string  `json:"host,omitempty"`
	PID     int     `json:"pid,omitempty"`
	Text    string  `json:"text,omitempty"`
	WaitS   float64 `json:"wait_s,omitempty"`
	Waiting int     `json:"waiting"`
}

// MarshalJSON returns the diagnosis as cohort.trace.v1, without the field "schema".
func (v Diagnosis) MarshalJSON() ([]byte, error) {
	d := document{Finding: v.Finding, Sentence: v.Sentence, Ranks: ranklist.Short(v.Ranks), Groups: []groupDocument{}, Notes: v.Notes}
	for i := range v.Groups {
		d.Groups = append(d.Groups, v.Groups[i].document())
	}
	for _, w := range v.Workers {
		d.Workers = append(d.Workers, workerDocument{w.Name, w.Host, w.PID, w.Text, seconds(w.Wait), len(w.Calls) + w.More})
	}
	return json.Marshal(d)
}

func (g groupDiagnosis) document() groupDocument {
	d := groupDocument{
		Group: g.Group, Description: g.Description, Size: g.Size, Transport: g.Transport, Finding: g.Finding, Sentence: g.Sentence,
		Ranks: ranklist.Short(g.Ranks), Missing: ranklist.Short(g.Missing), Members: []memberDocument{},
	}
	for _, m := range g.Members {
		row := memberDocument{Rank: m.Rank, GroupRank: m.GroupRank, Host: m.Host, PID: m.PID, Status: m.Status, Failed: m.Failed}
		for _, p := range m.Doing {
			row.Doing = append(row.Doing, pendingDocument{p.Op, p.Seq, p.P2P, p.Text, seconds(p.Wait), p.State.String()})
		}
		d.Members = append(d.Members, row)
	}
	return d
}

func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// label is the short name of an operation: "all_reduce #17", "recv from rank 2".
func (e *Entry) label() string {
	if e.P2P {
		return e.Op
	}
	return e.Op + " #" + strconv.FormatUint(e.Seq, 10)
}

// text is the operation with what it works on: "all_reduce #17 (sum of float32, 4.0 KiB)".
func (e *Entry) text(about *About) string {
	var facts []string
	if e.Reduce != "" {
		facts = append(facts, e.Reduce+" of "+e.DType)
	} else if e.DType != "" {
		facts = append(facts, e.DType)
	}
	if n := max(e.In, e.Out); n > 0 {
		facts = append(facts, Bytes(n))
	}
	if !e.P2P && e.Peer >= 0 {
		facts = append(facts, "root "+strconv.Itoa(about.globalOf(e.Peer)))
	}
	if e.Tag != 0 {
		facts = append(facts, "tag "+strconv.FormatUint(uint64(e.Tag), 10))
	}
	s := e.label()
	if e.P2P {
		s = e.towards(about)
	}
	if len(facts) > 0 {
		s += " (" + strings.Join(facts, ", ") + ")"
	}
	return s
}

// towards is the label of a message with its peer.
func (e *Entry) towards(about *About) string {
	switch {
	case e.Peer < 0:
		return e.Op
	case e.sends():
		return e.Op + " to rank " + strconv.Itoa(about.globalOf(e.Peer))
	}
	return e.Op + " from rank " + strconv.Itoa(about.globalOf(e.Peer))
}

func (e *Entry) sends() bool { return e.Op == "send" }

// Bytes writes a size as people read it.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	x, names := float64(n), []string{"KiB", "MiB", "GiB", "TiB"}
	for i, name := range names {
		x /= unit
		if x < unit || i == len(names)-1 {
			return fmt.Sprintf("%.4g %s", x, name)
		}
	}
	return ""
}

// span writes a duration with as many digits as matter.
func span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%d us", d.Microseconds())
}

// ranksText writes "rank 1", "ranks 1 and 2" or "ranks 0 to 5 and 7".
func ranksText(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0])
	}
	parts := ranklist.Parts(ranks, " to ")
	if n := len(parts); n > 1 {
		return "ranks " + strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return "ranks " + strings.Join(parts, "")
}

// verb is the verb's form for so many ranks.
func verb(ranks []int, one, many string) string {
	if len(ranks) == 1 {
		return one
	}
	return many
}

// more is "s" after a number other than one.
func more(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

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
