// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"slices"
	"time"
)

// Folder joins identical lines of several ranks that arrive at about the same time. It is a machine without a clock: the
// driver passes the time. Lines of one rank keep their order.
type Folder struct {
	ranks  int
	window time.Duration
	queue  []folded
	// next counts, for each rank, the entries up to and including the last that has a line of it: a line may only join
	// an entry behind that one.
	next  map[int]int
	first int // number of entries that have left the queue
}

// folded is a line of one or more ranks.
type folded struct {
	Ranks []int
	Text  string
	since time.Time
}

// maxFolded bounds the lines that wait for others.
const maxFolded = 4096

// newFolder returns a Folder for so many ranks. A line waits for those of other ranks as long as window.
func newFolder(ranks int, window time.Duration) *Folder {
	return &Folder{ranks: ranks, window: window, next: map[int]int{}}
}

// Add takes a line of a rank and returns the lines that are ready.
func (f *Folder) Add(rank int, text string, now time.Time) []folded {
	at := max(0, f.next[rank]-f.first)
	joined := false
	for i := at; i < len(f.queue); i++ {
		if f.queue[i].Text == text {
			f.queue[i].Ranks = append(f.queue[i].Ranks, rank)
			f.next[rank] = f.first + i + 1
			joined = true
			break
		}
	}
	if !joined {
		f.queue = append(f.queue, folded{Ranks: []int{rank}, Text: text, since: now})
		f.next[rank] = f.first + len(f.queue)
	}
	return f.Ready(now)
}

// Ready returns the lines that have waited long enough or that all ranks have said.
func (f *Folder) Ready(now time.Time) []folded {
	n := 0
	for n < len(f.queue) && (len(f.queue[n].Ranks) == f.ranks || now.Sub(f.queue[n].since) >= f.window || len(f.queue)-n > maxFolded) {
		n++
	}
	return f.take(n)
}

// Flush returns all lines.
func (f *Folder) Flush() []folded { return f.take(len(f.queue)) }

// Pending reports whether lines wait.
func (f *Folder) Pending() bool { return len(f.queue) > 0 }

func (f *Folder) take(n int) []folded {
	if n == 0 {
		return nil
	}
	out := slices.Clone(f.queue[:n])
	f.queue = slices.Delete(f.queue, 0, n)
	f.first += n
	for i := range out {
		slices.Sort(out[i].Ranks)
	}
	return out
}
