// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/pystack"
)

// Loops reports whether a thread was in the same function of the program in two readings, called from the same lines, whatever it has called
// itself.
func Loops(a, b *pystack.Thread) bool {
	if a == nil || b == nil {
		return false
	}
	own := func(f pystack.Frame) bool { return !pystack.Library(f.File) }
	i, j := slices.IndexFunc(a.Frames, own), slices.IndexFunc(b.Frames, own)
	if i < 0 || j < 0 {
		return false
	}
	return a.Frames[i].Func == b.Frames[j].Func && a.Frames[i].File == b.Frames[j].File && reflect.DeepEqual(a.Frames[i+1:], b.Frames[j+1:])
}

var (
	// ofTorch are keys that threads of PyTorch's own look for all the time.
	ofTorch = regexp.MustCompile(`(dump|dump_signal|remote_error)$`)
	// asks is a line of a program that asks a store for a key.
	asks = regexp.MustCompile(`\.(get|add|check|num_keys)\(`)
)

// polled notes that the main thread of a rank asks the store for a key again and again, and gets nowhere: the store has given it the same
// answer for some time, and it has not left its function. A thread of the program that asks beside a main thread at work is none of that.
func (c *court) polled(r *Rank) {
	p := c.at[r.Rank]
	i := slices.IndexFunc(c.job.Polls, func(w Wait) bool { return w.Rank == r.Rank && w.Age >= time.Second && !ofTorch.MatchString(w.Key) })
	if i < 0 || r.Gone != "" || !r.Loops || p.class != inProgram {
		return
	}
	others := slices.ContainsFunc(r.Threads, func(t pystack.Thread) bool { return t.ID != r.Main.ID && ownCode(t.Frames) })
	if r.Object != theStore && !asks.MatchString(r.Line) && others {
		return
	}
	r.polls, r.Moved, r.Wakes = &c.job.Polls[i], false, 0
	p.how = "asking the store for the key " + r.polls.Key + " again and again" + always(r.polls)
	c.at[r.Rank] = p
}

// always says what a poll is answered each time.
func always(w *Wait) string {
	if w.Answer == "" {
		return ""
	}
	return ", which is always " + w.Answer
}

// polling: ranks ask the store for a key again and again, which nobody changes.
func (c *court) polling() (Verdict, bool) {
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
		parts = append(parts, fmt.Sprintf("%s %s the store for the key %s again and again, in %s%s%s", lower(name(n)), verb(n, "ask"), key, p.where(), since(w.Age), always(w)))
	}
	return Verdict{Sentence: upper(strings.Join(parts, "; ")) + ": nobody changes it" + c.others(here...) + c.ended() + "."}, true
}
