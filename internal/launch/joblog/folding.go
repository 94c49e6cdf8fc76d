// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// foldWindow is how long a line waits for the same line of other ranks.
const foldWindow = 80 * time.Millisecond

// Folding joins identical lines of several ranks on their way to an output: a [Folder] with a clock.
type Folding struct {
	out   *Output
	paint func(cohort.Rank, string) string
	mu    struct {
		sync.Mutex
		folder *Folder
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
