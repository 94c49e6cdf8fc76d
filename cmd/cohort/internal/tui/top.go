// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// Top is what one frame of "cohort store top" shows.
type Top struct {
	Addr     string
	Uptime   time.Duration
	Conns    map[string]int // by dialect
	Keys     int64
	Queues   int64
	Bytes    int64
	Ops      int64
	Rate     float64
	ByOp     map[string]int64
	ByOpRate map[string]float64
	Workers  int64 // PyTorch's counter of clients that joined
	Here     []int // ranks of Go processes that are connected
	Gone     []int // those that joined and are no longer
	Left     int64 // keys of an earlier run
	LeftFor  time.Duration
	Waiting  int // requests that wait; Waits may tell less than all
	Waits    []Wait
	Data     string // about the folder of a store that has one
	DataBad  bool   // it refuses changes
	Err      string
	Pending  bool // nothing was measured yet: the numbers mean nothing
}

// Wait is one client that waits.
type Wait struct {
	Client string // its address
	Name   string // who it says it is
	Keys   []string
	Since  time.Duration
}

// long is the age at which a wait is worth a colour.
const long = 10 * time.Second

// dialectNames are the server's words for dialects, as a user of PyTorch knows them, in the order of the frame.
var dialectNames = []struct{ dialect, name string }{
	{"v", "PyTorch 2"}, {"legacy", "PyTorch 1"}, {"native", "cohort"}, {"silent", "silent"},
}

// Frame draws t in width columns and at most height lines; height 0 means all lines.
func (t Top) Frame(width, height int, style Style) string {
	width = max(width, 40)
	var lines []string
	add := func(line string) { lines = append(lines, line) }

	if t.Pending {
		text := style.Bold(Cut("cohort store "+printable.Line(t.Addr), width)) + "\n" + style.Dim("measuring") + "\n"
		if t.Err != "" {
			text += style.Red(Cut(printable.Line(t.Err), width)) + "\n"
		}
		return text
	}
	add(style.Bold(Cut("cohort store "+printable.Line(t.Addr)+"  up "+Age(t.Uptime), width)))
	if t.Err != "" {
		add(style.Red(Cut(printable.Line(t.Err), width)))
	}
	total := 0
	var kinds []string
	for _, d := range dialectNames {
		n := t.Conns[d.dialect]
		total += n
		if n > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", n, d.name))
		}
	}
	line := "connections " + Count(int64(total))
	if len(kinds) > 0 {
		line += " (" + strings.Join(kinds, ", ") + ")"
	}
	add(Cut(line, width))
	line = fmt.Sprintf("keys        %s, %s", Count(t.Keys), Bytes(t.Bytes))
	if t.Queues > 0 {
		line += fmt.Sprintf(", %s queues", Count(t.Queues))
	}
	add(Cut(line, width))
	add(Cut(fmt.Sprintf("operations  %s/s, %s in all%s", Count(int64(t.Rate+0.5)), Count(t.Ops), t.busiest()), width))
	if line := t.ranks(); line != "" {
		if len(t.Gone) > 0 {
			add(style.Yellow(Cut(line, width)))
		} else {
			add(Cut(line, width))
		}
	}
	if t.Data != "" {
		line := Cut("folder: "+t.Data, width)
		if t.DataBad {
			line = style.Red(line)
		}
		add(line)
	}
	if t.Left > 0 {
		add(style.Yellow(Cut(fmt.Sprintf("used before: %s keys are left of clients that went %s ago; cohort store clear removes them",
			Count(t.Left), Age(t.LeftFor)), width)))
	}
	add("")

	waits := slices.Clone(t.Waits)
	slices.SortFunc(waits, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(b.Since, a.Since), cmp.Compare(a.Client, b.Client))
	})
	if len(waits) == 0 {
		add(style.Green("no waiters"))
	} else {
		add(style.Bold(Cut(fmt.Sprintf("%d waiting, the longest first", max(t.Waiting, len(waits))), width)))
		lines = append(lines, waitTable(waits, width, style)...)
	}
	if height > 0 && len(lines) > height {
		hidden := len(lines) - height + 1
		lines = append(lines[:height-1], style.Dim(fmt.Sprintf("... %d more", hidden)))
	}
	return strings.Join(lines, "\n") + "\n"
}

// ranks says who joined, as far as that is known: PyTorch's ranks are only counted.
func (t Top) ranks() string {
	var parts []string
	if t.Workers > 0 {
		parts = append(parts, Count(t.Workers)+" joined")
	}
	if len(t.Here) > 0 {
		parts = append(parts, "here by name: "+Ranges(t.Here))
	}
	if len(t.Gone) > 0 {
		parts = append(parts, "gone: "+Ranges(t.Gone))
	}
	if len(parts) == 0 {
		return ""
	}
	return "ranks       " + strings.Join(parts, ", ")
}

// busiest names the operations that made the rate.
func (t Top) busiest() string {
	type share struct {
		name string
		rate float64
	}
	var shares []share
	for name, rate := range t.ByOpRate {
		if rate >= 0.5 {
			shares = append(shares, share{name, rate})
		}
	}
	slices.SortFunc(shares, func(a, b share) int { return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(a.name, b.name)) })
	if len(shares) == 0 {
		return ""
	}
	var parts []string
	for _, s := range shares[:min(len(shares), 4)] {
		parts = append(parts, fmt.Sprintf("%s %s/s", s.name, Count(int64(s.rate+0.5))))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func waitTable(waits []Wait, width int, style Style) []string {
	const most = 10000 // a frame is for eyes
	waits = waits[:min(len(waits), most)]
	ageWidth, whoWidth := len("SINCE"), len("CLIENT")
	for _, w := range waits {
		ageWidth = max(ageWidth, len(Age(w.Since)))
		whoWidth = max(whoWidth, columns(who(w)))
	}
	whoWidth = min(whoWidth, width/2)
	rest := max(width-ageWidth-whoWidth-4, 8)
	lines := []string{style.Dim(pad("SINCE", ageWidth) + "  " + pad("CLIENT", whoWidth) + "  WAITS FOR")}
	for _, w := range waits {
		age := pad(Age(w.Since), ageWidth)
		if w.Since >= long {
			age = style.Yellow(age)
		}
		lines = append(lines, age+"  "+pad(Cut(who(w), whoWidth), whoWidth)+"  "+Cut(keyList(w), rest))
	}
	return lines
}

// who is the client as people know it: a rank where it told, and its address.
func who(w Wait) string {
	if w.Name == "" {
		return printable.Line(w.Client)
	}
	return printable.Line(w.Name) + " (" + printable.Line(w.Client) + ")"
}

func keyList(w Wait) string {
	shown := make([]string, len(w.Keys))
	for i, key := range w.Keys {
		shown[i] = printable.Line(key)
	}
	return strings.Join(shown, ", ")
}
