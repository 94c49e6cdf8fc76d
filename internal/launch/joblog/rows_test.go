// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What tqdm prints: a bar is "\r" and its text, with spaces over what a longer one left; a second one below is drawn after
// "\n" and followed by "\x1b[A"; a bar that is done and stays ends with "\n", one that goes is wiped.
func bar(n int) string      { return fmt.Sprintf("\r%3d%%|## | %d/10", 10*n, n) }
func below(s string) string { return "\n" + s + "\x1b[A" }

func TestRows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text  string
		lines []string
		live  string
	}{
		"lines":                 {"a\n\nb\n", []string{"a", "", "b"}, ""},
		"a piece":               {"a\nb", []string{"a"}, "b"},
		"lines of Windows":      {"a\r\nb\r\n", []string{"a", "b"}, ""},
		"a bar":                 {bar(1) + bar(2) + bar(3), nil, " 30%|## | 3/10"},
		"a return at the end":   {"10%\r20%\r", nil, "20%"},
		"a bar that is done":    {bar(9) + bar(10) + "\nnext\n", []string{"100%|## | 10/10", "next"}, ""},
		"a bar that is held":    {bar(10) + "\n", nil, "100%|## | 10/10"},
		"a bar that is wiped":   {bar(10) + "\r              \rnext\n", nil, "next"},
		"two bars":              {bar(1) + below("\rinner 1") + below("\rinner 2") + bar(2), nil, " 20%|## | 2/10 | inner 2"},
		"two bars, one ends":    {bar(1) + below("\rinner 9") + below("\r       ") + bar(2) + "\nend\n", nil, " 20%|## | 2/10 | end"},
		"one bar and the next":  {bar(10) + "\n" + "\rother 1", nil, "100%|## | 10/10 | other 1"},
		"a line below bars":     {bar(1) + "\nwarning: x\n" + bar(2), []string{" 10%|## | 1/10", "warning: x"}, " 20%|## | 2/10"},
		"colours stay":          {"\x1b[31mred\x1b[0m\n", []string{"\x1b[31mred\x1b[0m"}, ""},
		"the rest goes":         {"\x1b[2J\x1b[10;3Hx\x1b]0;title\ay\x1b]8;;u\x1b\\z\x1b(B\a\b\n", []string{"xyz"}, ""},
		"controls of two bytes": {"a\u009b31mred\u009b0m\u009b2J\u0085\u0090 \u00a9\xc2\n", []string{"a\x1b[31mred\x1b[0m \u00a9\xc2"}, ""},
		"no sequence":           {"a\x1b\nb\x1b[3\nc\n", []string{"a", "b", "c"}, ""},
		"erase":                 {"\rabc\x1b[2Kd\n", nil, "d"},
		"a return and text":     {"abc\rd\n", nil, "d"},
		"more rows than held":   {strings.Repeat("\rx\n", maxRows+1), []string{"x", "x"}, strings.Repeat("x | ", maxRows-2) + "x"},
	} {
		for _, size := range []int{1, 2, 3, 1 << 20} {
			var r rows
			var lines []string
			put := func(b []byte) { lines = append(lines, string(b)) }
			for text := c.text; text != ""; {
				n := min(size, len(text))
				r.feed([]byte(text[:n]), time.Unix(0, 0), put)
				text = text[n:]
			}
			if diff := cmp.Diff(c.lines, lines); diff != "" || string(r.live()) != c.live {
				t.Errorf("%s, in pieces of %d: live %q, want %q (-want +got):\n%s", name, size, r.live(), c.live, diff)
			}
		}
	}
}

// TestRowsSettle: a bar that is done is printed when nothing is drawn over it for a while.
func TestRowsSettle(t *testing.T) {
	t.Parallel()
	var r rows
	var lines []string
	put := func(b []byte) { lines = append(lines, string(b)) }
	now := time.Unix(0, 0)
	r.feed([]byte(bar(10)+"\n"), now, put)
	r.feed(nil, now.Add(stillTime-1), put)
	if len(lines) != 0 || r.settles().IsZero() {
		t.Errorf("too early: %q", lines)
	}
	r.feed(nil, now.Add(stillTime), put)
	if diff := cmp.Diff([]string{"100%|## | 10/10"}, lines); diff != "" || !r.settles().IsZero() || len(r.live()) > 0 {
		t.Errorf("it is not printed: %s", diff)
	}
	// The next one is a bar of its own.
	r.feed([]byte("\rother"), now.Add(stillTime), put)
	r.finish(put)
	if diff := cmp.Diff([]string{"100%|## | 10/10", "other"}, lines); diff != "" {
		t.Error(diff)
	}
}

// TestRowsAnything: whatever a worker prints in whatever pieces, memory is bounded and lines hold nothing that moves the
// cursor.
func TestRowsAnything(t *testing.T) {
	t.Parallel()
	words := []string{
		"x", "bar 10%", "\r", "\n", "\x1b[A", "\x1b[5A", "\x1b[K", "\x1b[2K", "\x1b[31m", "\x1b]0;", "\a", "\x1b",
		"\x1b[", "\xff", "検", "\t", "\b", strings.Repeat("long ", 15_000),
	}
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		var r rows
		check := func(b []byte) {
			if strings.ContainsAny(strings.ReplaceAll(string(b), "\x1b[31m", ""), "\r\n\x1b\a\b") || len(b) > maxLine {
				t.Fatalf("seed %d: line %.100q of %d", seed, b, len(b))
			}
		}
		now := time.Unix(0, 0)
		for range 100 {
			r.feed([]byte(words[rnd.IntN(len(words))]), now, check)
			now = now.Add(time.Duration(rnd.IntN(60)) * time.Millisecond)
			if len(r.open) > maxRows+1 || r.cur > maxRows || len(r.escape) > maxEscape {
				t.Fatalf("seed %d: %d rows, cursor %d, escape %d", seed, len(r.open), r.cur, len(r.escape))
			}
		}
		r.finish(check)
		if len(r.open) != 0 {
			t.Fatalf("seed %d: %d rows are left", seed, len(r.open))
		}
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\nb": "a\nb", "": "", "a\n" + bar(1) + bar(2) + "\nTraceback:\n": "a\n 20%|## | 2/10\nTraceback:\n", "\rx": "x\n",
	} {
		if got := Plain([]byte(text)); got != want {
			t.Errorf("Plain(%q) is %q, want %q", text, got, want)
		}
	}
}

// TestCopyLines: lines and bars through a pipe, with the file a copy of every byte.
func TestCopyLines(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	text := "begin\n" + bar(1) + bar(2) + bar(3) + "\n" + "end"
	lines, live := make(chan string, 10), make(chan string, 100)
	var file strings.Builder
	s := &Stream{Lines: func(b []byte) { lines <- string(b) }, Live: func(b []byte) { live <- string(b) }, File: &file, Tail: NewTail(100)}
	done := make(chan error, 1)
	go func() { done <- copyStream(r, s) }()
	_, _ = io.WriteString(w, strings.TrimSuffix(text, "end"))
	for _, want := range []string{"begin", " 30%|## | 3/10"} { // the bar is done though nothing follows
		select {
		case got := <-lines:
			if got != want {
				t.Errorf("the line is %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no line %q", want)
		}
	}
	_, _ = io.WriteString(w, "end")
	_ = w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := <-lines; got != "end" {
		t.Errorf("the last line is %q", got)
	}
	last := "?"
	for len(live) > 0 {
		last = <-live
	}
	if file.String() != text || string(s.Tail.Bytes()) != text || last != "" {
		t.Errorf("file %q, live %q", file.String(), last)
	}
}
