// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// traceEvent is an event of the Trace Event Format that Chrome and Perfetto read. Times are microseconds.
type traceEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    micros         `json:"ts"`
	Dur   *micros        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	ID    string         `json:"id,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// micros is a time in microseconds, written with the nanoseconds behind the point.
type micros time.Duration

// MarshalJSON writes the number.
func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

// traceFile is a whole trace.
type traceFile struct {
	Events []traceEvent      `json:"traceEvents"`
	Unit   string            `json:"displayTimeUnit"`
	Other  map[string]string `json:"otherData"`
}

// Perfetto writes the merged dumps as a trace that ui.perfetto.dev and chrome://tracing open: a rank is a process, a group
// a thread. Collectives are slices of the thread, from their start to their end; messages, and operations that are queued,
// are asynchronous slices, since they overlap. What is not complete ends where the dump was taken.
//
// The clocks of different machines differ. A collective in which every rank needs every other cannot end on one rank before
// it began on another; where the dumps contradict that, the clock of the later rank is moved by the smallest amounts that
// agree with all such operations (their middle). How much is in the trace's otherData and in the process's label.
func Perfetto(dumps []Dump) ([]byte, error) {
	teams, _ := assemble(dumps)
	offsets := alignClocks(teams)
	start := earliest(teams, offsets)
	file := traceFile{Events: []traceEvent{}, Unit: "ms", Other: map[string]string{"source": format}}
	if !start.IsZero() {
		file.Other["start"] = start.UTC().Format(time.RFC3339Nano)
	}
	named := map[int]bool{}
	for i, t := range teams {
		for _, v := range t.present {
			shift := offsets[v.global]
			if !named[v.global] {
				named[v.global] = true
				file.Events = append(file.Events, processEvents(v, shift)...)
				if shift != 0 {
					file.Other["clock of rank "+strconv.Itoa(v.global)] = "moved by " + (-shift).String()
				}
			}
			thread := "group " + t.Group
			if t.Description != "" {
				thread += " (" + t.Description + ")"
			}
			file.Events = append(file.Events,
				traceEvent{Name: "thread_name", Phase: "M", PID: v.global, TID: i + 1, Args: map[string]any{"name": thread}},
				traceEvent{Name: "thread_sort_index", Phase: "M", PID: v.global, TID: i + 1, Args: map[string]any{"sort_index": i}})
			at := func(x time.Time) micros { return micros(max(0, x.Add(-shift).Sub(start))) }
			for j := range v.Entries {
				file.Events = append(file.Events, entryEvents(v, &v.Entries[j], i+1, at)...)
			}
		}
	}
	return json.MarshalIndent(file, "", " ")
}

func processEvents(v *view, shift time.Duration) []traceEvent {
	name := "rank " + strconv.Itoa(v.global)
	if v.Host != "" {
		name += " (" + v.process() + ")"
	}
	if shift != 0 {
		name += ", clock moved by " + (-shift).String()
	}
	return []traceEvent{
		{Name: "process_name", Phase: "M", PID: v.global, Args: map[string]any{"name": name}},
		{Name: "process_sort_index", Phase: "M", PID: v.global, Args: map[string]any{"sort_index": v.global}},
	}
}

// entryEvents are the slices of one operation.
func entryEvents(v *view, e *Entry, thread int, at func(time.Time) micros) []traceEvent {
	args := map[string]any{"state": e.State.String(), "seq": e.Seq}
	for key, text := range map[string]string{"dtype": e.DType, "reduce": e.Reduce, "error": e.Err} {
		if text != "" {
			args[key] = text
		}
	}
	if e.In > 0 {
		args["in_bytes"] = e.In
	}
	if e.Out > 0 {
		args["out_bytes"] = e.Out
	}
	if e.Peer >= 0 {
		key := "root"
		if e.P2P {
			key = "peer"
		}
		args[key] = v.globalOf(e.Peer)
	}
	if e.P2P {
		args["tag"] = e.Tag
	}
	end := e.Ended
	if end.IsZero() {
		end = v.taken
	}
	begin, cat := e.Started, "collective"
	if e.P2P {
		cat = "message"
	}
	if begin.IsZero() {
		begin, cat = e.Posted, "queued"
	} else if !e.P2P {
		args["queued_us"] = float64(begin.Sub(e.Posted)) / 1e3
	}
	from, until := at(begin), at(end)
	until = max(until, from)
	name := e.label()
	if e.P2P {
		name = e.towards(&v.About)
	}
	event := traceEvent{Name: name, Cat: cat, TS: from, PID: v.global, TID: thread, Args: args}
	if cat == "collective" {
		dur := until - from
		event.Phase, event.Dur = "X", &dur
		return []traceEvent{event}
	}
	event.Phase, event.ID = "b", fmt.Sprintf("%d.%d.%d", v.global, thread, e.ID)
	last := event
	last.Phase, last.TS, last.Args = "e", until, nil
	return []traceEvent{event, last}
}

// meets lists the collectives in which every rank needs every other, so that none can end before all have begun.
var meets = []string{
	"all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
	"all_to_all_single", "barrier",
}

// alignClocks returns by how much each rank's clock is ahead of the clock of the first rank that it shares a group with.
func alignClocks(teams []*team) map[int]time.Duration {
	offsets := map[int]time.Duration{}
	for _, t := range teams {
		if len(t.present) == 0 {
			continue
		}
		// The reference is a rank whose clock is known already, so that groups agree.
		ref := t.present[0]
		for _, v := range t.present {
			if _, ok := offsets[v.global]; ok {
				ref = v
				break
			}
		}
		base := offsets[ref.global]
		offsets[ref.global] = base
		for _, v := range t.present {
			if _, ok := offsets[v.global]; !ok {
				offsets[v.global] = base + clockOffset(ref, v)
			}
		}
	}
	return offsets
}

// clockOffset returns by how much the clock of v is ahead of that of ref: 0 where the dumps do not contradict it.
func clockOffset(ref, v *view) time.Duration {
	if ref == v {
		return 0
	}
	var least, most time.Duration
	known := false
	for seq, a := range ref.calls {
		b := v.calls[seq]
		if b == nil || a.State != Completed || b.State != Completed || a.Op != b.Op || !slices.Contains(meets, a.Op) {
			continue
		}
		// No rank ends before all began: b.Posted - x <= a.Ended and a.Posted <= b.Ended - x.
		low, high := b.Posted.Sub(a.Ended), b.Ended.Sub(a.Posted)
		if !known {
			least, most, known = low, high, true
		}
		least, most = max(least, low), min(most, high)
	}
	if !known || (least <= 0 && most >= 0) {
		return 0
	}
	return least + (most-least)/2
}

// earliest is the time of the first event, by the moved clocks.
func earliest(teams []*team, offsets map[int]time.Duration) time.Time {
	var first time.Time
	for _, t := range teams {
		for _, v := range t.present {
			for i := range v.Entries {
				if at := v.Entries[i].Posted.Add(-offsets[v.global]); first.IsZero() || at.Before(first) {
					first = at
				}
			}
		}
	}
	return first
}
