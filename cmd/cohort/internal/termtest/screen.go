// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package termtest is a small terminal for tests: it shows what a program has written as a person would see it. It knows
// what the commands use and reports everything else.
package termtest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Screen is a terminal that breaks lines again when its width changes, as most do today. It has all lines that it ever
// showed.
type Screen struct {
	mu struct {
		sync.Mutex
		width, height int
		rows          []row
		at, column    int // of the cursor, in rows
		pending       []byte
		unknown       []string
	}
}

// row is a row; broken says that the next one continues its line.
type row struct {
	cells  []rune // a wide character is followed by a 0
	broken bool
}

// New returns an empty screen.
func New(width, height int) *Screen {
	s := &Screen{}
	s.mu.width, s.mu.height, s.mu.rows = width, height, make([]row, 1)
	return s
}

// Size returns the size.
func (s *Screen) Size() (width, height int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.width, s.mu.height
}

// Write implements [io.Writer].
func (s *Screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.pending = append(s.mu.pending, b...)
	for len(s.mu.pending) > 0 {
		n := s.take(s.mu.pending)
		if n == 0 {
			break // a sequence that is not complete
		}
		s.mu.pending = s.mu.pending[n:]
	}
	return len(b), nil
}

// take obeys the first character or sequence of b and returns its length, 0 if it is not complete.
func (s *Screen) take(b []byte) int {
	switch b[0] {
	case '\n': // the kernel sends a carriage return before it
		s.mu.column = 0
		s.down()
		return 1
	case '\r':
		s.mu.column = 0
		return 1
	case '\t':
		s.mu.column = min(s.mu.column/8*8+8, s.mu.width-1)
		return 1
	case '\x1b':
		if len(b) < 2 {
			return 0
		}
		if b[1] != '[' {
			s.mu.unknown = append(s.mu.unknown, fmt.Sprintf("%q", b[:2]))
			return 2
		}
		end := bytes.IndexFunc(b[2:], func(c rune) bool { return c >= '@' && c <= '~' })
		if end < 0 {
			return 0
		}
		s.obey(string(b[2:2+end]), b[2+end])
		return end + 3
	}
	if b[0] < ' ' {
		s.mu.unknown = append(s.mu.unknown, fmt.Sprintf("%q", b[:1]))
		return 1
	}
	if !utf8.FullRune(b) {
		return 0
	}
	r, n := utf8.DecodeRune(b)
	s.put(r)
	return n
}

func (s *Screen) obey(args string, what byte) {
	n := 1
	_, _ = fmt.Sscanf(args, "%d", &n)
	switch {
	case what == 'm':
	case what == 'A':
		s.mu.at = max(s.mu.at-n, max(0, len(s.mu.rows)-s.mu.height))
	case what == 'K' && args == "":
		s.eraseRow()
	case what == 'J' && args == "":
		s.eraseRow()
		for i := s.mu.at + 1; i < len(s.mu.rows); i++ {
			s.mu.rows[i] = row{}
		}
	default:
		s.mu.unknown = append(s.mu.unknown, fmt.Sprintf("\\x1b[%s%c", args, what))
	}
}

// eraseRow erases from the cursor to the end of its row.
func (s *Screen) eraseRow() {
	r := &s.mu.rows[s.mu.at]
	r.cells, r.broken = r.cells[:min(len(r.cells), s.mu.column)], false
}

func (s *Screen) down() {
	s.mu.at++
	if s.mu.at == len(s.mu.rows) {
		s.mu.rows = append(s.mu.rows, row{})
	}
}

func (s *Screen) put(r rune) {
	w := ansi.StringWidth(string(r))
	if w == 0 {
		return
	}
	if s.mu.column+w > s.mu.width {
		s.mu.rows[s.mu.at].broken = true
		s.down()
		s.mu.column = 0
	}
	to := &s.mu.rows[s.mu.at]
	for len(to.cells) < s.mu.column+w {
		to.cells = append(to.cells, ' ')
	}
	to.cells[s.mu.column] = r
	if w == 2 {
		to.cells[s.mu.column+1] = 0
	}
	s.mu.column += w
}

// Resize gives the terminal another size and breaks its lines again.
func (s *Screen) Resize(width, height int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []row
	at, column := 0, 0
	for last := len(s.mu.rows) - 1; last > s.mu.at && len(s.mu.rows[last].cells) == 0; last-- {
		s.mu.rows = s.mu.rows[:last] // free rows at the bottom go first when the height shrinks
	}
	for i := 0; i < len(s.mu.rows); {
		var line []rune
		cursor := -1
		for ; ; i++ {
			if i == s.mu.at {
				cursor = len(line) + s.mu.column
			}
			line = append(line, s.mu.rows[i].cells...)
			if !s.mu.rows[i].broken || i == len(s.mu.rows)-1 {
				break
			}
		}
		i++
		start := len(rows)
		for {
			n := min(width, len(line))
			if n < len(line) && line[n] == 0 {
				n-- // not in the middle of a wide character
			}
			rows = append(rows, row{cells: line[:n:n], broken: n < len(line)})
			line = line[n:]
			if len(line) == 0 {
				break
			}
		}
		if cursor >= 0 {
			at, column = min(start+cursor/width, len(rows)-1), cursor%width
		}
	}
	s.mu.rows, s.mu.at, s.mu.column, s.mu.width, s.mu.height = rows, at, column, width, height
}

// Lines returns the lines, without those that are empty at the end and without spaces at their ends. All says to
// return those that have left the screen too.
func (s *Screen) Lines(all bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.mu.rows
	if !all {
		rows = rows[max(0, len(rows)-s.mu.height):]
	}
	var lines []string
	line := ""
	for _, r := range rows {
		line += strings.ReplaceAll(string(r.cells), "\x00", "")
		if !r.broken {
			lines = append(lines, strings.TrimRight(line, " "))
			line = ""
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// Cursor returns where the cursor is: the column, and whether anything stands in its row or below.
func (s *Screen) Cursor() (column int, free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.mu.rows[s.mu.at:] {
		if strings.TrimRight(string(r.cells), " \x00") != "" {
			return s.mu.column, false
		}
	}
	return s.mu.column, true
}

// Unknown returns the sequences that this terminal does not know.
func (s *Screen) Unknown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.unknown
}
