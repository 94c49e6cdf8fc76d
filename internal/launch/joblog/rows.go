// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
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
	half    bool      // the last piece ended with the first byte of what may be a control character of two
	changed bool      // an open row has changed since the last look
}

// row is one row that is not finished.
type row struct {
	text  []byte
	drawn bool   // a carriage return was seen: it is a progress bar
	over  bool   // the next character is the first of the row again
	shown []byte // what was printed of it before it was finished
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
	piece = r.whole(piece)
	for len(piece) > 0 {
		if len(r.escape) > 0 {
			piece = r.inEscape(piece)
			continue
		}
		// Plain text up to the next character that means something.
		n := bytes.IndexFunc(piece, func(c rune) bool { return c < ' ' && c != '\t' || c >= 0x7f && c <= lastC1 })
		if n < 0 {
			n = len(piece)
		}
		if n > 0 {
			r.print(piece[:n], put)
			piece = piece[n:]
			continue
		}
		c, width := utf8.DecodeRune(piece)
		piece = piece[width:]
		switch c {
		case '\n':
			r.newLine(now, put)
		case '\r':
			row := r.row()
			row.drawn, row.over = true, true
		case '\x1b':
			r.escape = append(r.escape, '\x1b')
		case csi:
			r.escape = append(r.escape, "\x1b["...)
		}
	}
}

// Control characters above ASCII take two bytes, of which firstOfC1 is the first. Terminals obey csi as they do ESC [.
const (
	firstOfC1 = 0xc2
	csi       = 0x9b
	lastC1    = 0x9f
)

// whole puts a character together that came in two pieces.
func (r *rows) whole(piece []byte) []byte {
	if len(piece) == 0 {
		return nil
	}
	if r.half {
		piece = append([]byte{firstOfC1}, piece...)
	}
	if r.half = piece[len(piece)-1] == firstOfC1; r.half {
		piece = piece[:len(piece)-1]
	}
	return piece
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
		row.text, row.shown, text = row.text[:0], nil, text[n:]
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
	if over(r.settles(), now) {
		r.commit(r.cur, put)
	}
}

// commit finishes the first n rows. A bar that was wiped is not shown, nor what was shown already as it is.
func (r *rows) commit(n int, put func([]byte)) {
	n = min(n, len(r.open))
	for i := range n {
		row := &r.open[i]
		switch text := row.visible(); {
		case len(text) > 0 && bytes.Equal(text, row.shown):
		case len(text) > 0:
			put(text)
		case !row.drawn:
			put(row.text)
		}
	}
	r.open = append(r.open[:0], r.open[n:]...)
	r.cur = max(0, r.cur-n)
	r.changed = true
}

// visible returns what a terminal shows of a row.
func (r *row) visible() []byte { return bytes.TrimRight(r.text, " ") }

// hidden reports whether an open row has something that was not shown.
func (r *rows) hidden() bool {
	return slices.ContainsFunc(r.open, func(row row) bool {
		return len(row.visible()) > 0 && !bytes.Equal(row.visible(), row.shown)
	})
}

// show prints the open rows that have something that was not shown.
func (r *rows) show(put func([]byte)) {
	for i := range r.open {
		row := &r.open[i]
		text := row.visible()
		if len(text) == 0 || bytes.Equal(text, row.shown) {
			continue
		}
		row.shown = bytes.Clone(text)
		if !row.drawn {
			text = lastPart(text)
		}
		put(text)
	}
}

// maxPart bounds what is printed of a line that only grows, such as one of dots, while it does.
const maxPart = 200

var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// lastPart returns the end of a long line.
func lastPart(text []byte) []byte {
	if len(text) <= maxPart {
		return text
	}
	text = colours.ReplaceAll(text, nil)
	from := max(0, len(text)-maxPart)
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return slices.Concat([]byte("..."), text[from:])
}

// finish ends the output: what is left is shown.
func (r *rows) finish(put func([]byte)) {
	if r.half && len(r.escape) == 0 {
		r.print([]byte{firstOfC1}, put)
	}
	for len(r.open) > 0 && len(r.open[len(r.open)-1].text) == 0 {
		r.open = r.open[:len(r.open)-1]
	}
	r.commit(len(r.open), put)
}

// settles returns when rows that are held are finished; zero: none are.
func (r *rows) settles() time.Time {
	if r.cur == 0 {
		return time.Time{}
	}
	return r.at.Add(stillTime)
}

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
		if text := row.visible(); len(text) > 0 {
			if len(all) > 0 {
				all = append(all, " | "...)
			}
			all = append(all, text...)
		}
	}
	return all
}
