// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// foldWindow is how long a line waits for the same line of other ranks.
const foldWindow = 80 * time.Millisecond

// Folding joins identical lines of several ranks on their way to an output: a [Folding] with a clock.
type Folding struct {
	out   *Output
	paint func(cohort.Rank, string) string
	mu    struct {
		sync.Mutex
		folder *lineFolder
		timer  *time.Timer // runs while lines wait
		closed bool
	}
}

// NewFolding returns a Folding for so many ranks. paint, if set, colours the prefix of a line by its first rank.
func NewFolding(out *Output, ranks int, paint func(cohort.Rank, string) string) *Folding {
	f := &Folding{out: out, paint: paint}
	f.mu.folder = newFolder(ranks, foldWindow)
	return f
}

// Add takes a line of a rank.
func (f *Folding) Add(rank cohort.Rank, line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.print(f.mu.folder.Add(int(rank), string(line), time.Now()))
	if f.mu.timer == nil && f.mu.folder.Pending() && !f.mu.closed {
		f.mu.timer = time.AfterFunc(foldWindow, f.tick)
	}
}

func (f *Folding) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.timer = nil
	f.print(f.mu.folder.Ready(time.Now()))
	if f.mu.folder.Pending() && !f.mu.closed {
		f.mu.timer = time.AfterFunc(foldWindow, f.tick)
	}
}

// Close writes what still waits.
func (f *Folding) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.closed = true
	f.print(f.mu.folder.Flush())
	if f.mu.timer != nil {
		f.mu.timer.Stop()
	}
}

// print writes lines in one piece.
func (f *Folding) print(lines []folded) {
	var b bytes.Buffer
	for _, l := range lines {
		prefix := "[rank " + strconv.Itoa(l.Ranks[0]) + "]"
		if len(l.Ranks) > 1 {
			prefix = "[ranks " + ranklist.Short(l.Ranks) + "]"
		}
		if f.paint != nil {
			prefix = f.paint(cohort.Rank(l.Ranks[0]), prefix)
		}
		b.WriteString(prefix + " " + l.Text)
		if f.paint != nil && strings.Contains(l.Text, "\x1b") {
			b.WriteString("\x1b[0m") // a colour ends with its line
		}
		b.WriteByte('\n')
	}
	if b.Len() > 0 {
		_, _ = f.out.Write(b.Bytes())
	}
}

// lineFolder joins identical lines of several ranks that arrive at about the same time. It is a machine without a clock: the
// driver passes the time. Lines of one rank keep their order.
type lineFolder struct {
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

// newFolder returns a lineFolder for so many ranks. A line waits for those of other ranks as long as window.
func newFolder(ranks int, window time.Duration) *lineFolder {
	return &lineFolder{ranks: ranks, window: window, next: map[int]int{}}
}

// Add takes a line of a rank and returns the lines that are ready.
func (f *lineFolder) Add(rank int, text string, now time.Time) []folded {
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
func (f *lineFolder) Ready(now time.Time) []folded {
	n := 0
	for n < len(f.queue) && (len(f.queue[n].Ranks) == f.ranks || now.Sub(f.queue[n].since) >= f.window || len(f.queue)-n > maxFolded) {
		n++
	}
	return f.take(n)
}

// Flush returns all lines.
func (f *lineFolder) Flush() []folded { return f.take(len(f.queue)) }

// Pending reports whether lines wait.
func (f *lineFolder) Pending() bool { return len(f.queue) > 0 }

func (f *lineFolder) take(n int) []folded {
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
