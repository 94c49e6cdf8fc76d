// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"strings"
	"time"
)

// rows turns what a worker prints for a terminal into lines that are finished and rows that still change: progress bars
// are drawn again and again, after a carriage return, and several of them by moving up. It is a machine without a clock.
//
// A finished row that was drawn over may be drawn over again if the worker moves up to it, so it is held until the worker
// prints something else below, or does not move up for a while. Colours are kept, other escape sequences and control
// characters are dropped: they would break the screen that several workers share.
type rows struct {
	open    []row
	cur     int
	at      time.Time // when cur last moved below a row that is held
	escape  []byte    // an escape sequence that is not complete
	changed bool      // an open row has changed since the last look
}

// row is one row that is not finished.
type row struct {
	text  []byte
	drawn bool // a carriage return was seen: it is a progress bar
	over  bool // the next character is the first of the row again
}

const (
	// maxRows bounds the rows of one worker that change.
	maxRows = 8
	// maxEscape bounds an escape sequence; what is longer is none.
	maxEscape = 256
)

// feed takes a piece of output and hands finished lines to put.
func (r *rows) feed(piece []byte, now time.Time, put func(line []byte)) {
	r.settle(now, put)
	for len(piece) > 0 {
		if len(r.escape) > 0 {
			piece = r.inEscape(piece)
			continue
		}
		// Plain text up to the next character that means something.
		n := bytes.IndexFunc(piece, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
		if n < 0 {
			n = len(piece)
		}
		if n > 0 {
			r.print(piece[:n], put)
			piece = piece[n:]
			continue
		}
		c := piece[0]
		piece = piece[1:]
		switch c {
		case '\n':
			r.newLine(now, put)
		case '\r':
			row := r.row()
			row.drawn, row.over = true, true
		case '\x1b':
			r.escape = append(r.escape, c)
		}
	}
}

// row returns the row of the cursor.
func (r *rows) row() *row {
	for len(r.open) <= r.cur {
		r.open = append(r.open, row{})
	}
	return &r.open[r.cur]
}

func (r *rows) print(text []byte, put func([]byte)) {
	row := r.row()
	if !row.drawn && r.cur > 0 && r.cur == len(r.open)-1 {
		r.commit(r.cur, put) // a usual line below bars: they are done
		row = r.row()
	}
	if row.over {
		row.text, row.over = row.text[:0], false
	}
	r.changed = true
	for len(row.text)+len(text) > maxLine {
		n := maxLine - len(row.text)
		put(append(row.text, text[:n]...))
		row.text, text = row.text[:0], text[n:]
	}
	row.text = append(row.text, text...)
}

func (r *rows) newLine(now time.Time, put func([]byte)) {
	row := r.row()
	if r.cur == len(r.open)-1 && (!row.drawn || len(row.text) == 0 || row.over) {
		r.cur++
		r.commit(r.cur, put)
		return
	}
	r.at = now
	r.cur++
	r.row().over = true
	if r.cur >= maxRows {
		r.commit(1, put)
	}
}

// inEscape takes the rest of an escape sequence and returns what follows.
func (r *rows) inEscape(piece []byte) []byte {
	for i, c := range piece {
		if c < ' ' && c != '\x1b' && c != '\a' { // no part of a sequence
			r.escape = r.escape[:0]
			return piece[i:]
		}
		r.escape = append(r.escape, c)
		if escapeDone(r.escape) || len(r.escape) > maxEscape {
			r.obey(r.escape)
			r.escape = r.escape[:0]
			return piece[i+1:]
		}
	}
	return nil
}

// escapeDone reports whether a sequence is complete: ESC [ ... letter, ESC ] ... BEL or ESC \, ESC and another character.
func escapeDone(e []byte) bool {
	if len(e) < 2 {
		return false
	}
	last := e[len(e)-1]
	switch e[1] {
	case '[':
		return len(e) > 2 && last >= '@' && last <= '~'
	case ']', 'P', '_', '^':
		return last == '\a' || len(e) > 3 && last == '\\' && e[len(e)-2] == '\x1b'
	case '(', ')', '#', '%':
		return len(e) > 2
	}
	return true
}

func (r *rows) obey(e []byte) {
	if len(e) < 3 || e[1] != '[' {
		return
	}
	arg := 0
	for _, c := range e[2 : len(e)-1] {
		if c < '0' || c > '9' {
			arg = 0
			break
		}
		arg = min(arg*10+int(c-'0'), 1000)
	}
	switch e[len(e)-1] {
	case 'm':
		row := r.row()
		if row.over {
			row.text, row.over = row.text[:0], false
		}
		if len(row.text)+len(e) <= maxLine {
			row.text = append(row.text, e...)
		}
	case 'A':
		r.cur = max(0, r.cur-max(1, arg))
	case 'K':
		if row := r.row(); row.over || arg == 2 {
			row.text, row.over, r.changed = row.text[:0], true, true
		}
	}
}

// settle finishes rows that are held for too long.
func (r *rows) settle(now time.Time, put func([]byte)) {
	if r.cur > 0 && now.Sub(r.at) >= stillTime {
		r.commit(r.cur, put)
	}
}

// commit finishes the first n rows. A bar that was wiped is not shown.
func (r *rows) commit(n int, put func([]byte)) {
	n = min(n, len(r.open))
	for i := range n {
		row := &r.open[i]
		if text := bytes.TrimRight(row.text, " "); len(text) > 0 {
			put(text)
		} else if !row.drawn {
			put(row.text)
		}
	}
	r.open = append(r.open[:0], r.open[n:]...)
	r.cur = max(0, r.cur-n)
	r.changed = true
}

// finish ends the output: what is left is shown.
func (r *rows) finish(put func([]byte)) {
	for len(r.open) > 0 && len(r.open[len(r.open)-1].text) == 0 {
		r.open = r.open[:len(r.open)-1]
	}
	r.commit(len(r.open), put)
}

// waiting reports whether rows are held that settle may finish.
func (r *rows) waiting() bool { return r.cur > 0 }

// Plain returns text as a terminal would show it in the end: without what was drawn over.
func Plain(text []byte) string {
	if bytes.IndexByte(text, '\r') < 0 && bytes.IndexByte(text, '\x1b') < 0 {
		return string(text)
	}
	var r rows
	var b strings.Builder
	put := func(line []byte) {
		b.Write(line)
		b.WriteByte('\n')
	}
	r.feed(text, time.Time{}, put)
	r.finish(put)
	return b.String()
}

// live returns the rows that still change, as one line.
func (r *rows) live() []byte {
	var all []byte
	for _, row := range r.open {
		if text := bytes.TrimRight(row.text, " "); len(text) > 0 {
			if len(all) > 0 {
				all = append(all, " | "...)
			}
			all = append(all, text...)
		}
	}
	return all
}
