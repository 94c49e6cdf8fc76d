// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"fmt"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// topDocument is a frame of "cohort store top" for programs.
type topDocument struct {
	Addr     string             `json:"addr"`
	UptimeS  float64            `json:"uptime_s"`
	Conns    map[string]int     `json:"connections"`
	Keys     int64              `json:"keys"`
	Queues   int64              `json:"queues"`
	Bytes    int64              `json:"data_bytes"`
	Ops      int64              `json:"operations"`
	Rate     float64            `json:"operations_per_s"`
	ByOp     map[string]int64   `json:"operations_by_name"`
	ByOpRate map[string]float64 `json:"operations_by_name_per_s"`
	Workers  int64              `json:"workers"`
	Here     string             `json:"ranks_here,omitempty"`
	Gone     string             `json:"ranks_gone,omitempty"`
	Left     int64              `json:"left_behind"`
	LeftS    float64            `json:"left_s,omitempty"`
	Waiting  int                `json:"waiting"`
	Waits    []topWait          `json:"waits"`
	Data     *dataDocument      `json:"data,omitempty"`
	Err      string             `json:"error,omitempty"`
}

type topWait struct {
	Client string   `json:"client"`
	Name   string   `json:"name,omitempty"`
	Keys   []string `json:"keys"`
	AgeS   float64  `json:"age_s"`
}

func topDocumentOf(t tui.Top, data *dataDocument) topDocument {
	d := topDocument{
		Addr: t.Addr, UptimeS: seconds(t.Uptime), Conns: t.Conns, Keys: t.Keys, Queues: t.Queues, Bytes: t.Bytes, Ops: t.Ops,
		Rate: t.Rate, ByOp: t.ByOp, ByOpRate: t.ByOpRate, Workers: t.Workers, Here: ranklist.Short(t.Here), Gone: ranklist.Short(t.Gone),
		Left: t.Left, LeftS: seconds(t.LeftFor), Waiting: t.Waiting, Waits: []topWait{}, Data: data, Err: t.Err,
	}
	for _, w := range t.Waits {
		d.Waits = append(d.Waits, topWait{w.Client, w.Name, w.Keys, seconds(w.Since)})
	}
	return d
}

// statsDocument is what /stats serves.
type statsDocument struct {
	Addr      string                    `json:"addr"`
	TakenAt   time.Time                 `json:"taken_at"`
	StartedAt time.Time                 `json:"started_at"`
	UptimeS   float64                   `json:"uptime_s"`
	Conns     map[string]int            `json:"connections"`
	Accepted  uint64                    `json:"accepted"`
	Cut       uint64                    `json:"cut"`
	Ops       map[string]uint64         `json:"operations"`
	Keys      int                       `json:"keys"`
	Queues    int                       `json:"queues"`
	Bytes     int64                     `json:"data_bytes"`
	Memory    int64                     `json:"memory_bytes"`
	Workers   int64                     `json:"workers"`
	Waiting   int                       `json:"waiting"`
	Waits     []statsWait               `json:"waits"`
	Polls     []statsWait               `json:"polls,omitempty"`
	Left      int                       `json:"left_behind"`
	LeftS     float64                   `json:"left_s,omitempty"`
	Claims    map[string]tcpstore.Claim `json:"claims,omitempty"`
	Data      *dataDocument             `json:"data,omitempty"`
}

// dataDocument describes the folder of a store.
type dataDocument struct {
	Dir           string  `json:"dir"`
	LogBytes      int64   `json:"log_bytes"`
	SinceBytes    int64   `json:"since_snapshot_bytes"`
	SnapshotBytes int64   `json:"snapshot_bytes,omitempty"`
	SnapshotAgeS  float64 `json:"snapshot_age_s,omitempty"`
	Changes       uint64  `json:"changes"`
	Syncs         uint64  `json:"syncs"`
	Refused       uint64  `json:"refused"`
	Full          bool    `json:"full,omitempty"`
	Error         string  `json:"error,omitempty"`
	SnapshotError string  `json:"snapshot_error,omitempty"`
	RecoveredKeys int     `json:"recovered_keys"`
	RecoveryS     float64 `json:"recovery_s"`
}

// dataLine says in a line how a folder is.
func dataLine(d *tcpstore.DataStats) string {
	line := fmt.Sprintf("%s, log %s, snapshot %s, %s changes in %s syncs", d.Dir, tui.Bytes(d.LogBytes), tui.Bytes(d.SnapshotBytes),
		tui.Count(int64(d.Changes)), tui.Count(int64(d.Syncs))) //nolint:gosec // counters stay far below 2^63
	switch {
	case d.Error != "":
		line += "; changes are refused: " + d.Error
	case d.Full:
		line += "; the disk is full"
	case d.SnapshotError != "":
		line += "; the last snapshot failed: " + d.SnapshotError
	}
	return line
}

func dataOf(s tcpstore.Stats) *dataDocument {
	d := s.Data
	if d == nil {
		return nil
	}
	doc := &dataDocument{
		Dir: d.Dir, LogBytes: d.LogBytes, SinceBytes: d.SinceBytes, SnapshotBytes: d.SnapshotBytes, Changes: d.Changes, Syncs: d.Syncs,
		Refused: d.Refused, Full: d.Full, Error: d.Error, SnapshotError: d.SnapshotError, RecoveredKeys: d.RecoveredKeys,
		RecoveryS: d.RecoverySeconds,
	}
	if d.SnapshotBytes > 0 {
		doc.SnapshotAgeS = seconds(s.Time.Sub(d.SnapshotTime))
	}
	return doc
}

type statsWait struct {
	Client  string  `json:"client"`
	Name    string  `json:"name,omitempty"`
	Key     string  `json:"key"`
	AgeS    float64 `json:"age_s"`
	Barrier bool    `json:"barrier,omitempty"`
	Asks    uint64  `json:"asks,omitempty"`
	Answer  string  `json:"answer,omitempty"`
}

func statsOf(s tcpstore.Stats) statsDocument {
	d := statsDocument{
		Addr: s.Addr, TakenAt: s.Time.UTC(), StartedAt: s.Started.UTC(), UptimeS: seconds(s.Time.Sub(s.Started)), Conns: s.Connections,
		Accepted: s.Accepted, Cut: s.Cut, Ops: s.Ops, Keys: s.Keys, Queues: s.Queues, Bytes: s.Bytes, Memory: s.Memory, Workers: s.Workers,
		Waiting: s.Waiting, Waits: append([]statsWait{}, statsWaits(s, s.Waits)...), Polls: statsWaits(s, s.Polls), Left: s.LeftBehind,
		Claims: s.Claims, Data: dataOf(s),
	}
	if !s.LeftAt.IsZero() {
		d.LeftS = seconds(s.Time.Sub(s.LeftAt))
	}
	return d
}

func statsWaits(s tcpstore.Stats, waits []tcpstore.Wait) []statsWait {
	var all []statsWait
	for _, w := range waits {
		all = append(all, statsWait{w.Waiter, w.Name, w.Key, seconds(s.Time.Sub(w.Since)), w.Barrier, w.Asks, w.Answer})
	}
	return all
}

func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }
