// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// promised is how long a line that is not finished may stand still without being shown, and longestSilence how long one may
// change without any state of it being shown.
const (
	promised       = 2 * time.Second
	longestSilence = repeatTime + 2*barTime
)

// simulated is a rank in virtual time. Every piece that it writes has a number, so that the screen shows how far it is.
type simulated struct {
	copy    copier
	number  int
	open    bool      // the last piece did not end its line
	at      time.Time // of the last piece
	pending []time.Time
}

// ways are the ways in which a job shows its output, but for the live view.
var ways = map[string]func(out *Output, rank int) *Stream{
	"as it is": func(out *Output, _ int) *Stream { return &Stream{Screen: out, Shared: true} },
	"a terminal without prefixes": func(out *Output, _ int) *Stream {
		return &Stream{Screen: out, Shared: true, Drawn: true}
	},
	"--tee": func(out *Output, rank int) *Stream {
		return &Stream{Screen: out, Shared: true, Drawn: true, Prefix: fmt.Appendf(nil, "[default%d]:", rank)}
	},
	"--prefix always": func(out *Output, rank int) *Stream {
		return &Stream{Shared: true, Lines: func(line []byte) { _, _ = fmt.Fprintf(out, "[rank %d] %s\n", rank, line) }}
	},
}

// TestUnfinishedLines: of whatever ranks write, the last piece is on the screen two seconds later, a line that keeps
// changing is shown again and again, and no line of the screen has text of two ranks.
func TestUnfinishedLines(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(12) {
				simulateWriters(t, seed, way)
			}
		})
	}
}

func simulateWriters(t *testing.T, seed uint64, way func(*Output, int) *Stream) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 5))
	var screen bytes.Buffer
	out := newOutput(&screen)
	var ranks []*simulated
	for i := range 3 {
		ranks = append(ranks, &simulated{copy: way(out, i).copier()})
	}
	now := time.Unix(0, 0)
	pauses := []time.Duration{time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond, 4 * time.Second}
	pause := pauses[0]
	for steps, next := 0, now; steps < 150; {
		for i, r := range ranks { // what is due before the next piece is written
			if due := r.copy.next(); !due.IsZero() && due.Before(next) {
				now = later(now, due)
				_ = r.copy.feed(nil, now)
			}
			checkShown(t, seed, i, r, screen.Bytes(), now)
		}
		if slices.ContainsFunc(ranks, func(r *simulated) bool { due := r.copy.next(); return !due.IsZero() && due.Before(next) }) {
			continue
		}
		now = next
		ranks[rnd.IntN(len(ranks))].write(rnd, now, ranks)
		if rnd.IntN(20) == 0 {
			pause = pauses[rnd.IntN(len(pauses))]
		}
		next = now.Add(time.Duration(rnd.Int64N(int64(pause))))
		steps++
	}
	for _, r := range ranks {
		_ = r.copy.finish(now)
	}
	checkUnmixed(t, seed, screen.String())
}

// write lets a rank write something: a state of a bar, dots, a prompt, half a line, lines.
func (r *simulated) write(rnd *rand.Rand, now time.Time, ranks []*simulated) {
	r.number++
	mark := fmt.Sprintf("<%d:%d>", slices.Index(ranks, r), r.number)
	form := []string{"\r%s 45%%|##", "%s.", "%s name? ", "%s\n", "a line\n%s half of", "\r%s\r", "\x1b[31m%s\x1b[0m"}[rnd.IntN(7)]
	text := fmt.Sprintf(form, mark)
	if r.open = !strings.HasSuffix(text, "\n"); !r.open {
		r.pending = nil
	} else {
		r.pending = append(r.pending, now)
	}
	r.at = now
	_ = r.copy.feed([]byte(text), now)
}

// checkShown checks what a rank may expect of the screen now.
func checkShown(t *testing.T, seed uint64, i int, r *simulated, screen []byte, now time.Time) {
	t.Helper()
	last := bytes.Contains(screen, fmt.Appendf(nil, "<%d:%d>", i, r.number))
	if last || !r.open {
		r.pending = nil
		return
	}
	if age := now.Sub(r.at); age > promised {
		t.Fatalf("seed %d: piece %d of rank %d is not shown after %v:\n%.2000q", seed, r.number, i, age, screen)
	}
	for n := range r.pending { // the newest state that is shown takes those before it off the list
		if bytes.Contains(screen, fmt.Appendf(nil, "<%d:%d>", i, r.number-n)) {
			r.pending = r.pending[len(r.pending)-n:]
			break
		}
	}
	if len(r.pending) > 0 && now.Sub(r.pending[0]) > longestSilence {
		t.Fatalf("seed %d: nothing of the line of rank %d is shown after %v", seed, i, now.Sub(r.pending[0]))
	}
}

var markOf = regexp.MustCompile(`<(\d):\d+>`)

func checkUnmixed(t *testing.T, seed uint64, screen string) {
	t.Helper()
	for line := range strings.Lines(screen) {
		marks := markOf.FindAllStringSubmatch(line, -1)
		for _, m := range marks {
			if m[1] != marks[0][1] {
				t.Fatalf("seed %d: a line of ranks %s and %s: %q", seed, marks[0][1], m[1], line)
			}
		}
	}
}

// TestSteadyBar: a bar that is drawn so often that it never stands still is shown nevertheless, in every way.
func TestSteadyBar(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		var screen bytes.Buffer
		c := way(newOutput(&screen), 0).copier()
		now := time.Unix(0, 0)
		for i := range 3000 { // a minute
			_ = c.feed(fmt.Appendf(nil, "\r%5d/3000", i), now)
			now = now.Add(20 * time.Millisecond)
			if i == 100 && screen.Len() == 0 {
				t.Errorf("%s: nothing is shown after %v", name, now.Sub(time.Unix(0, 0)))
			}
		}
		if lines := strings.Count(screen.String(), "\n"); name != "as it is" && (lines < 10 || lines > 20) {
			t.Errorf("%s: %d lines in a minute", name, lines)
		}
	}
}

// TestShownOnce: a line that was shown before it was finished is not printed again when it ends as it was; one that has
// grown is printed whole.
func TestShownOnce(t *testing.T) {
	t.Parallel()
	for text, want := range map[[2]string]string{
		{"name? ", "\n"}:                       "name?\n",
		{"half of", " it\n"}:                   "half of\nhalf of it\n",
		{"\r100%", "\n"}:                       "100%\n",
		{strings.Repeat(".", 300), "\n"}:       "..." + strings.Repeat(".", 200) + "\n",
		{strings.Repeat(".", 300), " done\n"}:  "..." + strings.Repeat(".", 200) + "\n" + strings.Repeat(".", 300) + " done\n",
		{"\r" + strings.Repeat("é", 300), "x"}: strings.Repeat("é", 300) + "\n" + strings.Repeat("é", 300) + "x\n",
	} {
		var screen bytes.Buffer
		c := (&Stream{Screen: newOutput(&screen), Drawn: true}).copier()
		now := time.Unix(0, 0)
		_ = c.feed([]byte(text[0]), now)
		_ = c.feed(nil, c.next())
		_ = c.feed([]byte(text[1]), now.Add(time.Minute))
		_ = c.finish(now.Add(2 * time.Minute))
		if screen.String() != want {
			t.Errorf("%q is shown as %q, want %q", text, screen.String(), want)
		}
	}
}

// piece is what tqdm wrote at once, and when.
type piece struct {
	at   time.Duration
	text string
}

// tqdm returns what tqdm 4.64 wrote into a pipe: two bars, one below the other, lines in between, a bar that stands still.
func tqdm(t *testing.T) (pieces []piece) {
	t.Helper()
	f, err := os.Open("testdata/tqdm.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		at, text, _ := strings.Cut(s.Text(), " ")
		seconds, err := strconv.ParseFloat(at, 64)
		p := piece{at: time.Duration(seconds * float64(time.Second))}
		if err == nil {
			err = json.Unmarshal([]byte(text), &p.text)
		}
		if err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, p)
	}
	return pieces
}

// TestTqdm: the bars of tqdm on a screen that takes lines: each once when it is done, and in between a state that stands still.
func TestTqdm(t *testing.T) {
	t.Parallel()
	var screen bytes.Buffer
	c := ways["--tee"](newOutput(&screen), 0).copier()
	var now time.Time
	for _, p := range tqdm(t) {
		at := time.Unix(0, 0).Add(p.at)
		for due := c.next(); !due.IsZero() && due.Before(at); due = c.next() {
			now = due
			_ = c.feed(nil, now)
		}
		_ = c.feed([]byte(p.text), at)
	}
	_ = c.finish(now)
	// The last two have stood still: the state of a second after the bars began, and 60% for three seconds.
	want := []string{`epoch 0 is over`, `steps: 100%`, `epoch 1 is over`, `epochs: 100%`, `eval:  60%`, `eval: 100%`}
	text := screen.String()
	for _, w := range want {
		if n := strings.Count(text, "[default0]:"+w); n != 1 {
			t.Errorf("%d lines %q", n, w)
		}
	}
	if n := strings.Count(text, "\n"); n > len(want)+2 || strings.ContainsAny(text, "\r\x1b") {
		t.Errorf("%d lines:\n%s", n, text)
	}
}

// TestOneScreenForBoth: stdout and stderr that end in one file do not continue a line of each other's ranks; those of one
// worker may.
func TestOneScreenForBoth(t *testing.T) {
	t.Parallel()
	file, err := os.Create(t.TempDir() + "/screen")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	again, err := os.OpenFile(file.Name(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	out, errs := NewOutputs(file, again)
	_ = (&Stream{Screen: out, Writer: 0}).put([]byte("rank 0: "))
	_ = (&Stream{Screen: errs, Writer: 0}).put([]byte("again "))
	_ = (&Stream{Screen: errs, Writer: 1}).put([]byte("rank 1\n"))
	text, err := os.ReadFile(file.Name())
	if want := "rank 0: again \nrank 1\n"; err != nil || string(text) != want {
		t.Errorf("the screen is %q, want %q (%v)", text, want, err)
	}
	var b bytes.Buffer
	if out, errs := NewOutputs(&b, &b); out != errs {
		t.Error("one writer has two outputs")
	}
}
