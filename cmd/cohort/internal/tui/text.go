// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tui draws what the commands show. Frames are pure functions of a snapshot, a size and a style, so that tests
// can compare them with golden files. The commands handle terminals, keys and signals.
package tui

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// columns is how many columns of a terminal s takes: a Chinese character takes two, an accent of its own none.
func columns(s string) int { return ansi.StringWidth(s) }

// Cut shortens s to at most width columns, marking the cut.
func Cut(s string, width int) string {
	if width <= 0 {
		return ""
	}
	if width < 4 {
		return ansi.Truncate(s, width, "")
	}
	return ansi.Truncate(s, width, "...")
}

// pad fills s with spaces up to width columns.
func pad(s string, width int) string {
	if n := columns(s); n < width {
		return s + strings.Repeat(" ", width-n)
	}
	return s
}

// Count writes a number with spaces between thousands.
func Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return sign + strings.Join(append([]string{digits}, parts...), " ")
}

// Plural writes a number of things: "1 rank", "2 ranks".
func Plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// Ranges writes sorted numbers shortly: "0-3, 5".
func Ranges(sorted []int) string {
	var parts []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(sorted[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// Bytes writes a size with a binary unit.
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

// Age writes a duration as a person would: "340ms", "12s", "4m03s", "2h05m", "3d04h".
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return "0ms"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

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

// Columns lines cells up.
func Columns(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(printable.Line(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[i], printable.Line(cell))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// Said is what a rank says of itself, as it follows what it does: ", section "load", step 120".
func Said(section string, steps uint64) string {
	text := ""
	if section != "" {
		text = ", section " + strconv.Quote(printable.Line(section))
	}
	if steps > 0 {
		text += ", step " + strconv.FormatUint(steps, 10)
	}
	return text
}
