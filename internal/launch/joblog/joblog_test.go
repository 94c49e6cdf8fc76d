// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// run copies what the writers write through pipes and returns the screen.
func run(t *testing.T, prefix bool, writers ...func(w *os.File)) string {
	t.Helper()
	var screen bytes.Buffer
	out := newOutput(&screen)
	var all sync.WaitGroup
	for i, write := range writers {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := &Stream{Screen: out}
		if prefix {
			s.Prefix = fmt.Appendf(nil, "[%d]: ", i)
		}
		all.Go(func() {
			if err := copyStream(r, s); err != nil {
				t.Error(err)
			}
			_ = r.Close()
		})
		all.Go(func() {
			write(w)
			_ = w.Close()
		})
	}
	all.Wait()
	return screen.String()
}

func TestCopy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text   string
		prefix bool
		want   string
	}{
		"lines":                      {"a\nb\n", false, "a\nb\n"},
		"no end":                     {"a\nb", false, "a\nb"},
		"prefix":                     {"a\n\nb", true, "[0]: a\n[0]: \n[0]: b"},
		"nothing":                    {"", true, ""},
		"one long line":              {strings.Repeat("x", 200_000) + "\n", false, strings.Repeat("x", 200_000) + "\n"},
		"one long line and a prefix": {strings.Repeat("x", 200_000) + "\ny\n", true, "[0]: " + strings.Repeat("x", 200_000) + "\n[0]: y\n"},
		"bytes that are no text":     {"\x00\xff\n", false, "\x00\xff\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, c.prefix, func(w *os.File) { _, _ = io.WriteString(w, c.text) })
			if got != c.want {
				t.Errorf("%d bytes, want %d: %.60q", len(got), len(c.want), got)
			}
		})
	}
}

// TestWholeLines: lines of writers that write in small pieces are never mixed, and none is lost.
func TestWholeLines(t *testing.T) {
	t.Parallel()
	const writers, lines = 4, 400
	var write []func(w *os.File)
	for i := range writers {
		write = append(write, func(w *os.File) {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			var text []byte
			for n := range lines {
				text = fmt.Appendf(text, "writer %d line %d %s\n", i, n, strings.Repeat("x", r.IntN(300)))
			}
			for len(text) > 0 {
				n := min(1+r.IntN(700), len(text))
				_, _ = w.Write(text[:n])
				text = text[n:]
			}
		})
	}
	next := [writers]int{}
	for line := range strings.Lines(run(t, false, write...)) {
		var i, n int
		if _, err := fmt.Sscanf(line, "writer %d line %d ", &i, &n); err != nil {
			t.Fatalf("a broken line: %q", line)
		}
		if next[i] != n {
			t.Fatalf("writer %d: line %d after %d", i, n, next[i]-1)
		}
		next[i]++
	}
	if next != [writers]int{lines, lines, lines, lines} {
		t.Errorf("lines: %v", next)
	}
}

// TestPrompt: a piece that stands still is shown, and what others print begins on a new line.
func TestPrompt(t *testing.T) {
	t.Parallel()
	shown := make(chan string, 100)
	out := newOutput(writerFunc(func(b []byte) (int, error) {
		shown <- string(b)
		return len(b), nil
	}))
	next := func() string {
		select {
		case s := <-shown:
			return s
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is shown")
		}
		panic("not reached")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- copyStream(r, &Stream{Screen: out, Prefix: []byte("[0] ")}) }()
	_, _ = io.WriteString(w, "(Pdb) ")
	if got := next(); got != "[0] (Pdb) " {
		t.Errorf("the prompt is %q", got)
	}
	_, _ = io.WriteString(w, "more ")
	if got := next(); got != "more " {
		t.Errorf("its continuation is %q", got)
	}
	_, _ = io.WriteString(out, "hello\n")
	if got := next(); got != "\nhello\n" {
		t.Errorf("another's line is %q", got)
	}
	_, _ = io.WriteString(w, "end\n")
	if got := next(); got != "[0] end\n" {
		t.Errorf("the end is %q", got)
	}
	_ = w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestFullDisk: a file that cannot be written is complained about once, and the screen goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	var screen bytes.Buffer
	troubles := 0
	s := &Stream{Screen: newOutput(&screen), File: full, Trouble: func(error) { troubles++ }, Tail: NewTail(100)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range 3000 {
			_, _ = io.WriteString(w, "a line of some length\n")
		}
		_ = w.Close()
	}()
	if err := copyStream(r, s); err != nil {
		t.Error(err)
	}
	if troubles != 1 || strings.Count(screen.String(), "\n") != 3000 {
		t.Errorf("%d complaints, %d lines", troubles, strings.Count(screen.String(), "\n"))
	}
	if got := string(s.Tail.Bytes()); got != strings.Repeat("a line of some length\n", 4) {
		t.Errorf("the tail is %q", got)
	}
}

// TestRoomAgain: a file on a disk that was full goes on when there is room, says how much is missing, and where. One
// that is broken does not.
func TestRoomAgain(t *testing.T) {
	t.Parallel()
	for why, want := range map[syscall.Errno]string{
		syscall.ENOSPC: "one\nt\n[9 bytes are missing here: no space left on device]\nfour\n",
		syscall.EIO:    "one\nt",
	} {
		var file bytes.Buffer
		room, troubles := 5, 0
		s := &Stream{Trouble: func(error) { troubles++ }, File: writerFunc(func(b []byte) (int, error) {
			n := min(len(b), room)
			room -= n
			file.Write(b[:n])
			if n < len(b) {
				return n, why
			}
			return n, nil
		})}
		for _, line := range []string{"one\n", "two\n", "three\n"} {
			s.keep([]byte(line))
		}
		room = 1000
		s.keep([]byte("four\n"))
		if file.String() != want || troubles != 1 {
			t.Errorf("%v: %d complaints, and the file is %q, want %q", why, troubles, file.String(), want)
		}
	}
}

// TestScreenGone: a screen that is closed ends the copy.
func TestScreenGone(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	out := newOutput(writerFunc(func([]byte) (int, error) { return 0, gone }))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, _ = io.WriteString(w, "a\n")
	if err := copyStream(r, &Stream{Screen: out}); !errors.Is(err, gone) {
		t.Errorf("error %v, want %v", err, gone)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	tail := NewTail(10)
	var all []byte
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		piece := fmt.Appendf(nil, "%0*d\n", 1+r.IntN(6), i)
		if r.IntN(5) == 0 {
			piece = bytes.Repeat([]byte("x\n"), 20)
		}
		all = append(all, piece...)
		tail.add(piece)
		got := tail.Bytes()
		if !bytes.HasSuffix(all, got) || len(got) > 10 || len(all) > 20 && len(got) < 3 {
			t.Fatalf("the tail of %q is %q", all[max(0, len(all)-30):], got)
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	var screen, filtered bytes.Buffer
	s := &Stream{
		Screen: newOutput(&screen), Filtered: newOutput(&filtered), Prefix: []byte("[r0]:"),
		Keep: func(line []byte) bool { return bytes.Contains(line, []byte("loss")) },
	}
	r, w, _ := os.Pipe()
	_, _ = io.WriteString(w, "loss 1\nstep\nloss 2\n")
	_ = w.Close()
	if err := copyStream(r, s); err != nil {
		t.Fatal(err)
	}
	if filtered.String() != "[r0]:loss 1\n[r0]:loss 2\n" || screen.String() != "[r0]:loss 1\n[r0]:step\n[r0]:loss 2\n" {
		t.Errorf("screen %q, filtered %q", screen.String(), filtered.String())
	}
}

func TestFold(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	f := newFolder(3, time.Second)
	var got []string
	take := func(lines []folded) {
		for _, l := range lines {
			got = append(got, fmt.Sprint(l.Ranks, l.Text))
		}
	}
	take(f.Add(0, "a", now))
	take(f.Add(1, "b", now)) // b before a on this rank
	take(f.Add(1, "a", now)) // may join the first a? No: its b stands behind it
	take(f.Add(2, "a", now)) // joins the first
	take(f.Add(0, "b", now)) // joins b
	take(f.Ready(now.Add(time.Second / 2)))
	if len(got) != 0 {
		t.Errorf("too early: %v", got)
	}
	take(f.Ready(now.Add(time.Second)))
	want := []string{"[0 2]a", "[0 1]b", "[1]a"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	got = nil
	for rank := range 3 {
		take(f.Add(rank, "all", now))
	}
	if diff := cmp.Diff([]string{"[0 1 2]all"}, got); diff != "" {
		t.Errorf("a line of all ranks comes at once (-want +got):\n%s", diff)
	}
}

// TestFoldKeepsOrder: with random lines of random ranks, each rank's lines come out complete and in order.
func TestFoldKeepsOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		f := newFolder(4, 5*time.Millisecond)
		sent, received := make([][]string, 4), make([][]string, 4)
		now := time.Unix(0, 0)
		take := func(lines []folded) {
			for _, l := range lines {
				for _, rank := range l.Ranks {
					received[rank] = append(received[rank], l.Text)
				}
			}
		}
		for range 300 {
			rank, text := r.IntN(4), string(rune('a'+r.IntN(4)))
			sent[rank] = append(sent[rank], text)
			take(f.Add(rank, text, now))
			now = now.Add(time.Duration(r.IntN(3)) * time.Millisecond)
		}
		take(f.Flush())
		if diff := cmp.Diff(sent, received); diff != "" {
			t.Fatalf("seed %d (-sent +received):\n%s", seed, diff)
		}
	}
}

// TestTailLive: the line that is not finished, as a terminal would show it.
func TestTailLive(t *testing.T) {
	t.Parallel()
	tail := NewTail(20000)
	if line, at := tail.Live(); line != "" || !at.IsZero() {
		t.Errorf("%q at %v", line, at)
	}
	for _, c := range [][2]string{
		{"one\n", ""},
		{"two", "two"},
		{"\r 45%|##", " 45%|##"},
		{"\r100%\n", ""},
		{strings.Repeat("x", 9000) + "\rnow", "now"},
	} {
		tail.add([]byte(c[0]))
		if line, at := tail.Live(); line != c[1] || at.IsZero() {
			t.Errorf("after %.20q: %.30q (%d bytes) at %v", c[0], line, len(line), at)
		}
	}
}

// TestStalledLine: a worker that is kept waiting in the middle of a line, longer than a prompt waits, does not find lines of
// others in it. One that has the screen to itself, or draws a progress bar, is shown at once.
func TestStalledLine(t *testing.T) {
	t.Parallel()
	for piece, c := range map[string]struct {
		shared bool
		want   string
	}{
		"half of": {true, "a line"}, // of the other worker, which comes first
		"name? ":  {false, "name? "},
		"\r 45%":  {true, "\r 45%"},
	} {
		screen := make(chan string, 100)
		out := newOutput(writerFunc(func(b []byte) (int, error) { screen <- string(b); return len(b), nil }))
		var pipes [2]*os.File
		var copies sync.WaitGroup
		for i := range pipes {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			pipes[i] = w
			copies.Go(func() {
				_ = copyStream(r, &Stream{Screen: out, Shared: c.shared})
				_ = r.Close()
			})
		}
		_, _ = pipes[0].WriteString(piece)
		if c.want == "a line" {
			for from := time.Now(); time.Since(from) < 4*stillTime; { // what the others print comes while it waits
				_, _ = pipes[1].WriteString("a line\n")
				if got := <-screen; got != "a line\n" {
					t.Fatalf("%q is printed before the line has ended", got)
				}
			}
		} else if got := <-screen; got != c.want {
			t.Errorf("%q is shown as %q", piece, got)
		}
		_, _ = pipes[0].WriteString(" it\n")
		var rest strings.Builder
		for !strings.HasSuffix(rest.String(), " it\n") {
			rest.WriteString(<-screen)
		}
		if c.want == "a line" && rest.String() != "half of it\n" {
			t.Errorf("the line is %q", rest.String())
		}
		for _, w := range pipes {
			_ = w.Close()
		}
		copies.Wait()
	}
}
