// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// State is how far a worker of the demonstration got with one act.
type State uint8

// The states.
const (
	Ahead State = iota
	Playing
	Done
	Failed
)

// Demo is what one frame of "cohort demo" shows.
type Demo struct {
	Addr    string
	Elapsed time.Duration
	Acts    []string
	Workers []DemoWorker
	Waits   []Wait // what the store says about who waits
}

// DemoWorker is one worker process.
type DemoWorker struct {
	PID    int
	States []State // one for each act
	Last   string  // what it said last
}

// Frame draws d in width columns.
func (d Demo) Frame(width int, style Style) string {
	width = max(width, 40)
	var b strings.Builder
	line := func(text string) { b.WriteString(text + "\n") }
	line(style.Bold(Cut(fmt.Sprintf("cohort demo  store %s  %s", d.Addr, Age(d.Elapsed)), width)))
	for rank, w := range d.Workers {
		line(d.worker(rank, w, width, style))
	}
	switch len(d.Waits) {
	case 0:
		line(style.Dim("store: no waiters"))
	default:
		line(style.Yellow(Cut("store: "+WaitText(d.Waits), width)))
	}
	return b.String()
}

// WaitText says in one line who waits for what, or nothing if there are no waiters.
func WaitText(waits []Wait) string {
	if len(waits) == 0 {
		return ""
	}
	waiters := make([]string, 0, len(waits))
	for _, w := range waits {
		waiters = append(waiters, shortWho(w)+" for "+keyList(w))
	}
	return "waiting: " + strings.Join(waiters, "; ")
}

// shortWho leaves the address out where the client has a name: all of them are on this machine.
func shortWho(w Wait) string {
	name, _, _ := strings.Cut(w.Name, ", ")
	if name == "" {
		name = w.Client
	}
	return printable.Line(name)
}

func (d Demo) worker(rank int, w DemoWorker, width int, style Style) string {
	used := 0
	var b strings.Builder
	put := func(text, painted string) {
		used += columns(text)
		b.WriteString(painted)
	}
	name := fmt.Sprintf("rank %d  pid %-7d ", rank, w.PID)
	put(name, name)
	for i, act := range d.Acts {
		state := Ahead
		if i < len(w.States) {
			state = w.States[i]
		}
		text := " " + act + " "
		switch state {
		case Ahead:
			put("  "+text, style.Dim("  "+text))
		case Playing:
			put("> "+text, style.Yellow("> "+text))
		case Done:
			put("+ "+text, style.Green("+ "+text))
		case Failed:
			put("! "+text, style.Red("! "+text))
		}
	}
	b.WriteString(" " + Cut(printable.Line(w.Last), width-used-1))
	return strings.TrimRight(b.String(), " ")
}
