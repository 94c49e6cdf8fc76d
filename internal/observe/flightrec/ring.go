// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package flightrec is the flight recorder of groups: it keeps the last operations of each group in fixed memory, dumps them
// as JSON, and explains from the dumps of all ranks who is late, missing or out of step.
//
// [Ring] records, [Dump] is a snapshot of it, and [Analyze] and [Perfetto] read dumps of many ranks; the readers do no
// I/O.
package flightrec

import "time"

// state is how far an operation has come.
type state uint8

// The states.
const (
	Posted state = iota
	Started
	Completed
	Failed
)

var stateNames = [...]string{"posted", "started", "completed", "failed"}

// String returns the state's name.
func (s state) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// MarshalText writes the state's name.
func (s state) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a state's name; unknown ones count as posted.
func (s *state) UnmarshalText(text []byte) error {
	*s = Posted
	for i, name := range stateNames {
		if name == string(text) {
			*s = state(i)
		}
	}
	return nil
}

// Entry is one operation.
type Entry struct {
	// ID counts all operations of the group on this rank, from 1.
	ID uint64 `json:"id"`
	// Seq is the sequence number: of the collective, or of the point-to-point operation between this rank and others.
	Seq uint64 `json:"seq"`
	// P2P reports that it is a point-to-point operation. Its sequence is counted apart.
	P2P bool `json:"p2p,omitempty"`
	// Op is PyTorch's name of the operation.
	Op string `json:"op"`
	// Reduce is the operator of a reduction.
	Reduce string `json:"reduce,omitempty"`
	DType  string `json:"dtype,omitempty"`
	// In and Out are bytes given and bytes expected.
	In  int64 `json:"in_bytes"`
	Out int64 `json:"out_bytes"`
	// Peer is the root, the sender or the receiver; -1 where there is none.
	Peer int `json:"peer"`
	// Tag is the user's tag of a point-to-point operation.
	Tag uint32 `json:"tag,omitempty"`

	State   state         `json:"state"`
	Posted  time.Time     `json:"posted"`
	Started time.Time     `json:"started,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	Err     string        `json:"error,omitempty"`
}

// defaultSize is the number of operations that a group remembers.
const defaultSize = 1024

// Ring remembers the last operations of one group on one rank. Its memory is taken once. It is guarded by its user: a group has its own
// mutex whenever an operation changes its state.
type Ring struct {
	about   About
	entries []Entry
	next    uint64 // ID of the next entry
	status  Status
	read    time.Time // of the system's clock
}

// About says whose operations a ring holds.
type About struct {
	Group       string `json:"group"`
	Description string `json:"description,omitempty"`
	Rank        int    `json:"rank"`
	Size        int    `json:"size"`
	// GlobalRanks are the world's ranks of the members, by group rank.
	GlobalRanks []int  `json:"global_ranks,omitempty"`
	Transport   string `json:"transport,omitempty"`
	Host        string `json:"host,omitempty"`
	PID         int    `json:"pid,omitempty"`
}

// Status is the progress of a group's collectives: the last sequence number that reached each state, -1 for none.
type Status struct {
	LastPosted    int64 `json:"last_posted"`
	LastStarted   int64 `json:"last_started"`
	LastCompleted int64 `json:"last_completed"`
}

// New returns a ring of size entries; 0 means defaultSize.
func New(about About, size int) *Ring {
	if size <= 0 {
		size = defaultSize
	}
	return &Ring{about: about, entries: make([]Entry, size), next: 1, status: Status{-1, -1, -1}}
}

// Now is the time. It takes one reading of a clock instead of two; a step of the system's clock shows within a second.
func (r *Ring) Now() time.Time {
	since := time.Since(r.read)
	if since > time.Second {
		r.read, since = time.Now(), 0
	}
	return r.read.Add(since)
}

// Post records a new operation with its sequence number. The caller fills in the rest of the entry.
func (r *Ring) Post(seq uint64, p2p bool) *Entry {
	e := &r.entries[r.next%uint64(len(r.entries))]
	*e = Entry{ID: r.next, Seq: seq, P2P: p2p}
	r.next++
	if !p2p {
		r.status.LastPosted = max(r.status.LastPosted, int64(seq)) //nolint:gosec // sequence numbers are small
	}
	return e
}

// entry returns the entry of an ID, nil when it was overwritten.
func (r *Ring) entry(id uint64) *Entry {
	if e := &r.entries[id%uint64(len(r.entries))]; e.ID == id && id != 0 {
		return e
	}
	return nil
}

// Start records that the operation runs.
func (r *Ring) Start(id uint64, at time.Time) {
	if e := r.entry(id); e != nil && e.State == Posted {
		e.State, e.Started = Started, at
		if !e.P2P {
			r.status.LastStarted = max(r.status.LastStarted, int64(e.Seq)) //nolint:gosec // sequence numbers are small
		}
	}
}

// End records that the operation is over. peer is the sender of a receive from any rank, -1 to leave it.
func (r *Ring) End(id uint64, at time.Time, peer int, err error) {
	e := r.entry(id)
	if e == nil || e.State == Completed || e.State == Failed {
		return
	}
	e.Ended, e.State = at, Completed
	if peer >= 0 {
		e.Peer = peer
	}
	if err != nil {
		e.Err, e.State = err.Error(), Failed
		return
	}
	if !e.P2P {
		r.status.LastCompleted = max(r.status.LastCompleted, int64(e.Seq)) //nolint:gosec // sequence numbers are small
	}
}
