// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"encoding/json"
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
