// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// Loops reports whether a thread was in the same function of the program in two readings, called from the same lines, had called nothing else
// there, and asked a store or slept at first. line is the text of the line that it was in then.
func Loops(a, b *stacks.Thread, line string) bool {
	if a == nil || b == nil {
		return false
	}
	i, j := itself(a), itself(b)
	if i < 0 || j < 0 || !asks.MatchString(line) && !rests(a, line) {
		return false
	}
	return a.Frames[i].Func == b.Frames[j].Func && a.Frames[i].File == b.Frames[j].File && reflect.DeepEqual(a.Frames[i+1:], b.Frames[j+1:])
}

// itself returns the number of the innermost call of a thread if that is one of the program, but for a wait of Python's threading; -1 if it is not.
func itself(t *stacks.Thread) int {
	i := slices.IndexFunc(t.Frames, func(f stacks.Frame) bool { return path.Base(f.File) != "threading.py" })
	if i < 0 || stacks.Library(t.Frames[i].File) {
		return -1
	}
	return i
}

// rests reports whether a thread sleeps in a line of the program.
func rests(t *stacks.Thread, line string) bool {
	return kernelWait(t, "") == inSleep || itself(t) > 0 || sleepLine.MatchString(line)
}

var (
	// ofTorch are keys that threads of PyTorch's own look for all the time.
	ofTorch = regexp.MustCompile(`(dump|dump_signal|remote_error)$`)
	// asks is a line of a program that asks a store for a key, and sleepLine one that sleeps.
	asks      = regexp.MustCompile(`(?i)store\w*(\(\))?\.(get|add|check)\(`)
	sleepLine = regexp.MustCompile(`\bsleep\(`)
)

// polled notes that the main thread of a rank asks the store for a key again and again, and gets nowhere: the store has given it the same
// answer for some time, and whenever it was looked at it slept or asked. A program may also look for a key in each step of its work. So one
// that was found at something else, or has used the processor for more than a little, is at work. Beside other threads of the program,
// which may be those who ask, it has to be found asking.
func (c *analysis) polled(r *Rank) {
	p := c.at[r.Rank]
	i := slices.IndexFunc(c.job.Polls, func(w Wait) bool { return w.Rank == r.Rank && w.Age >= time.Second && !ofTorch.MatchString(w.Key) })
	if i < 0 || r.Gone != "" || !r.Loops || !r.Sleeps || p.class != inProgram {
		return
	}
	others := slices.ContainsFunc(r.Threads, func(t stacks.Thread) bool { return t.ID != r.Main.ID && ownCode(t.Frames) })
	asking := r.Object == theStore || r.Object == "" && asks.MatchString(r.Line)
	if !asking && (others || !rests(r.Main, r.Line)) {
		return
	}
	r.polls, r.Moved, r.Wakes = &c.job.Polls[i], false, 0
	p.how = "polling the store for the key " + r.polls.Key + always(r.polls)
	c.at[r.Rank] = p
}

// always returns the value that every poll was answered with: " (always 2)".
func always(w *Wait) string {
	if w.Answer == "" {
		return ""
	}
	return " (always " + w.Answer + ")"
}

// polling: ranks ask the store for a key again and again, which no rank changes.
func (c *analysis) polling() (Verdict, bool) {
	here := c.ranks(func(r Rank, _ position) bool { return r.polls != nil })
	if len(here) == 0 || len(c.ranks(func(r Rank, _ position) bool { return r.atWork() })) > 0 {
		return Verdict{}, false // who is at work may change it
	}
	var keys []string
	by := map[string][]int{}
	for _, n := range here {
		key := c.rank(n).polls.Key
		if by[key] == nil {
			keys = append(keys, key)
		}
		by[key] = append(by[key], n)
	}
	const most = 4
	var parts []string
	for _, key := range keys[:min(len(keys), most)] {
		n := by[key]
		w, p := c.rank(n[0]).polls, c.at[n[0]]
		parts = append(parts, fmt.Sprintf("%s %s the store for the key %s%s, in %s%s", lower(name(n)), verb(n, "poll"), key, always(w), p.where(), since(w.Age)))
	}
	return Verdict{Sentence: upper(strings.Join(parts, "; ")) + ": no rank changes it" + c.others(here...) + c.ended() + "."}, true
}
