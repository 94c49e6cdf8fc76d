// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/charmbracelet/x/ansi"
)

// Live is a terminal with lines at its bottom that change, below output that scrolls. It changes no mode of the terminal
// and leaves the cursor at the beginning of the line below, so that nothing has to be put back, whatever ends the process.
type Live struct {
	w    io.Writer
	size func() (width, height int)
	mu   struct {
		sync.Mutex
		region region
		frame  func(width, height int) []string
		rest   []byte // of a line of output
		closed bool
		paused bool
		err    error
	}
}

// NewLive returns a Live on the terminal w, whose size is asked for whenever something is drawn.
func NewLive(w io.Writer, size func() (width, height int)) *Live { return &Live{w: w, size: size} }

// Set says what to draw at the bottom: lines for a width and at most so many, without the last of a screen.
func (l *Live) Set(frame func(width, height int) []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	l.mu.frame = frame
	l.draw(nil)
}

// Write prints output above. A line that is not finished waits for its end.
func (l *Live) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return l.w.Write(text)
	}
	l.mu.rest = append(l.mu.rest, text...)
	whole := bytes.LastIndexByte(l.mu.rest, '\n') + 1
	if whole == 0 && len(l.mu.rest) >= maxRest {
		l.mu.rest = append(l.mu.rest, '\n')
		whole = len(l.mu.rest)
	}
	if whole > 0 {
		l.draw(l.mu.rest[:whole])
		l.mu.rest = append(l.mu.rest[:0], l.mu.rest[whole:]...)
	}
	return len(text), l.mu.err
}

const (
	// maxRest bounds a line of output that waits for its end.
	maxRest = 64 << 10
	// A terminal that is smaller shows output alone.
	leastWidth, leastHeight = 10, 3
)

// HasRoom reports whether a terminal is large enough for lines at its bottom.
func HasRoom(width, height int) bool { return width >= leastWidth && height >= leastHeight }

// draw prints whole lines above and the frame below, in one write so that nothing flickers.
func (l *Live) draw(above []byte) {
	width, height := l.size()
	var lines []string
	if l.mu.frame != nil && !l.mu.paused && HasRoom(width, height) {
		lines = l.mu.frame(width, height/2)
	}
	if out := l.mu.region.draw(above, lines, width); len(out) > 0 && l.mu.err == nil {
		_, l.mu.err = l.w.Write(out)
	}
}

// Pause wipes the lines at the bottom until [Live.Continue], while another writer has the terminal.
func (l *Live) Pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.paused = true
	l.draw(nil)
}

// Continue draws the lines at the bottom anew, below what another writer has printed.
func (l *Live) Continue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	l.mu.paused, l.mu.region = false, region{}
	l.draw(nil)
}

// Close wipes the lines at the bottom. Output goes on as it comes.
func (l *Live) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	l.mu.closed = true
	l.mu.frame = nil
	l.draw(nil)
	if len(l.mu.rest) > 0 {
		_, _ = l.w.Write(append(l.mu.rest, '\n'))
	}
}

// region is the machine of the lines at the bottom: what to send to the terminal so that it shows new ones.
type region struct {
	shown []string
	width int
}

// draw returns what replaces the lines that are shown by output and other lines. Lines must have at most width columns.
func (r *region) draw(above []byte, lines []string, width int) []byte {
	if len(above) == 0 && width == r.width && equal(r.shown, lines) {
		return nil
	}
	var b bytes.Buffer
	if up := r.rows(width); up > 0 {
		b.WriteString("\x1b[" + strconv.Itoa(up) + "A")
	}
	b.WriteByte('\r')
	if len(above) > 0 || width != r.width {
		b.WriteString("\x1b[J")
		b.Write(above)
	}
	for _, line := range lines {
		b.WriteString("\x1b[K" + line)
		if strings.Contains(line, "\x1b") && !strings.HasSuffix(line, reset) {
			b.WriteString(reset)
		}
		b.WriteByte('\n')
	}
	b.WriteString("\x1b[J")
	r.shown, r.width = append([]string(nil), lines...), width
	return b.Bytes()
}

// rows counts the rows that the lines take now: a terminal that has become narrower has broken long ones.
func (r *region) rows(width int) int {
	n := 0
	for _, line := range r.shown {
		n++
		used := 0
		for _, c := range ansi.Strip(line) {
			w := columns(string(c))
			if used += w; used > width { // a wide character does not stand in two rows
				n, used = n+1, w
			}
		}
	}
	return n
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
