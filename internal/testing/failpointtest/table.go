// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// table counts what was covered: which events happened during which operations, at which points, and which happened together.
type table struct {
	mu struct {
		sync.Mutex
		during, at, pairs, together counts
	}
}

// counts are how often things came together: by row and column.
type counts map[string]map[string]int

func (c *counts) add(row, column string) {
	if *c == nil {
		*c = counts{}
	}
	if (*c)[row] == nil {
		(*c)[row] = map[string]int{}
	}
	(*c)[row][column]++
}

// happening is an event that has happened.
type happening struct {
	event string
	at    place
}

// add adds a run.
func (t *table) add(operations []string, happened []happening) {
	t.mu.Lock()
	defer t.mu.Unlock()
	operations = slices.Compact(slices.Sorted(slices.Values(operations)))
	for _, h := range happened {
		for _, operation := range operations {
			t.mu.during.add(operation, h.event)
		}
		t.mu.at.add(class(h.at.point), h.event)
	}
	if len(happened) < 2 {
		return
	}
	a, b := happened[0], happened[1]
	if a.event > b.event {
		a, b = b, a
	}
	t.mu.pairs.add(a.event, b.event)
	if a.at == b.at {
		t.mu.together.add(a.event, b.event)
	}
}

// class is the part of the code that a point belongs to: "gloo.pair" of "gloo.pair.read", "group" of "group.wait".
func class(point string) string {
	parts := strings.SplitN(point, ".", 3)
	if len(parts) < 3 {
		return parts[0]
	}
	return parts[0] + "." + parts[1]
}

// log prints the table.
func (t *table) log(tb testing.TB, events []string) {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	tb.Log("events during operations:" + t.mu.during.text(events, true) +
		"\nevents at points:" + t.mu.at.text(events, false) +
		"\nevents that happened both:" + t.mu.pairs.text(nil, false) +
		"\nevents at the same place:" + t.mu.together.text(nil, false))
}

// text has a line for every row. missing returns the columns that a row does not have.
func (c *counts) text(columns []string, missing bool) string {
	var b strings.Builder
	for _, row := range slices.Sorted(maps.Keys(*c)) {
		cells := (*c)[row]
		fmt.Fprintf(&b, "\n  %s:", row)
		for _, column := range slices.Sorted(maps.Keys(cells)) {
			fmt.Fprintf(&b, " %s %d", column, cells[column])
		}
		for _, column := range columns {
			if missing && cells[column] == 0 {
				fmt.Fprintf(&b, " NEVER %s", column)
			}
		}
	}
	return b.String()
}

func names(events []Event) []string {
	all := make([]string, len(events))
	for i, e := range events {
		all[i] = e.Name
	}
	return all
}

// happenings are the events that have happened in a run.
func (r *Run) happenings() []happening {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]happening, len(r.mu.injected))
	for i, in := range r.mu.injected {
		all[i] = happening{in.event.Name, in.at}
	}
	return all
}

// happenings are the events that were to happen to the victims.
func (p *ProcessRun) happenings() []happening {
	var all []happening
	for _, f := range p.Victims {
		for _, m := range f.Moments {
			all = append(all, happening{m.Event, place{m.Point, m.N}})
		}
	}
	return all
}
