// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
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
	Err      string             `json:"error,omitempty"`
}

type topWait struct {
	Client string   `json:"client"`
	Name   string   `json:"name,omitempty"`
	Keys   []string `json:"keys"`
	AgeS   float64  `json:"age_s"`
}

func topDocumentOf(t tui.Top) topDocument {
	d := topDocument{
		Addr: t.Addr, UptimeS: seconds(t.Uptime), Conns: t.Conns, Keys: t.Keys, Queues: t.Queues, Bytes: t.Bytes, Ops: t.Ops,
		Rate: t.Rate, ByOp: t.ByOp, ByOpRate: t.ByOpRate, Workers: t.Workers, Here: ranklist.Short(t.Here), Gone: ranklist.Short(t.Gone),
		Left: t.Left, LeftS: seconds(t.LeftFor), Waiting: t.Waiting, Waits: []topWait{}, Err: t.Err,
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
		Claims: s.Claims,
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
