// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tui draws what the commands show. Frames are pure functions of a snapshot, a size and a style, so that tests
// can compare them with golden files. The commands handle terminals, keys and signals.
package tui

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Style says how a frame may look.
type Style struct {
	// Colour allows escape sequences.
	Colour bool
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// StyleFor returns the style for output to w: colours on a terminal only, and not where the environment has NO_COLOR
// (no-color.org) or a terminal that cannot show them.
func StyleFor(w io.Writer, getenv func(string) string) Style {
	return Style{Colour: IsTerminal(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

const (
	reset  = "\x1b[0m"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

func (s Style) paint(code, text string) string {
	if !s.Colour || text == "" {
		return text
	}
	return code + text + reset
}

// Bold is for headings. Like the others it returns text as it is where colours are off.
func (s Style) Bold(text string) string { return s.paint(bold, text) }

// Dim is for what matters less.
func (s Style) Dim(text string) string { return s.paint(dim, text) }

// Red is for failures.
func (s Style) Red(text string) string { return s.paint(red, text) }

// Green is for successes.
func (s Style) Green(text string) string { return s.paint(green, text) }

// Yellow is for what lasts too long.
func (s Style) Yellow(text string) string { return s.paint(yellow, text) }

// Width returns the columns of a terminal, and enough for a line elsewhere.
func Width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 120
}
