// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/joblog"
	"github.com/cohort-dist/cohort/internal/ranklist"
)

// Screen is what a job shows itself on.
type Screen struct {
	// In is the standard input of a job of one worker; nil: none.
	In *os.File
	// Out and Err take what the workers print there, Err also the launcher's own messages.
	Out, Err io.Writer
	// Ranks puts the rank before every line and joins identical lines of several ranks: for people, not for programs.
	Ranks bool
	// Paint colours a rank's prefix, if set.
	Paint func(rank int, text string) string
	// Show, if set, is given the status of the job again and again, by one goroutine, until Run returns. Out and Err then
	// get whole lines only, and lines that are not finished are part of the status.
	Show func(Status)
}

// tailSize is what is kept of the end of each stream.
const tailSize = 32 << 10

// foldWindow is how long a line waits for the same line of other ranks.
const foldWindow = 80 * time.Millisecond

// screen is a Screen that the streams of all workers share.
type screen struct {
	Screen
	out, err *joblog.Output
	folds    [2]*folding // of stdout and stderr, with Ranks
}

func newScreen(s Screen) *screen {
	sc := &screen{Screen: s, out: joblog.NewOutput(s.Out)}
	sc.err = sc.out
	if s.Err != s.Out {
		sc.err = joblog.NewOutput(s.Err)
	}
	return sc
}

// say prints a message of the launcher.
func (s *screen) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.err, "cohort: "+format+"\n", args...)
}

func (s *screen) output(which Std) *joblog.Output {
	if which == Stdout {
		return s.out
	}
	return s.err
}

// begin prepares the screen for an attempt.
func (s *screen) begin(ranks int) {
	if s.Ranks {
		s.folds = [2]*folding{newFolding(s.out, ranks, s.Paint), newFolding(s.err, ranks, s.Paint)}
	}
}

// end shows what still waits.
func (s *screen) end() {
	for _, f := range s.folds {
		if f != nil {
			f.close()
		}
	}
}

// folding joins identical lines of several ranks on their way to an output.
type folding struct {
	out   *joblog.Output
	paint func(int, string) string
	mu    struct {
		sync.Mutex
		folder *joblog.Folder
		timer  *time.Timer // runs while lines wait
		closed bool
	}
}

func newFolding(out *joblog.Output, ranks int, paint func(int, string) string) *folding {
	f := &folding{out: out, paint: paint}
	f.mu.folder = joblog.NewFolder(ranks, foldWindow)
	return f
}

func (f *folding) add(rank int, line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.print(f.mu.folder.Add(rank, string(line), time.Now()))
	if f.mu.timer == nil && f.mu.folder.Pending() && !f.mu.closed {
		f.mu.timer = time.AfterFunc(foldWindow, f.tick)
	}
}

func (f *folding) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.timer = nil
	f.print(f.mu.folder.Ready(time.Now()))
	if f.mu.folder.Pending() && !f.mu.closed {
		f.mu.timer = time.AfterFunc(foldWindow, f.tick)
	}
}

func (f *folding) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.closed = true
	f.print(f.mu.folder.Flush())
	if f.mu.timer != nil {
		f.mu.timer.Stop()
	}
}

// print writes lines in one piece.
func (f *folding) print(lines []joblog.Folded) {
	var b bytes.Buffer
	for _, l := range lines {
		prefix := "[rank " + strconv.Itoa(l.Ranks[0]) + "]"
		if len(l.Ranks) > 1 {
			prefix = "[ranks " + ranklist.Short(l.Ranks) + "]"
		}
		if f.paint != nil {
			prefix = f.paint(l.Ranks[0], prefix)
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

// filters are the files that hold selected lines of all teed ranks.
type filters struct {
	files [2]*os.File
	outs  [2]*joblog.Output
	keep  [2]func([]byte) bool
}

func newFilters(c Config, run *runDir, attempt int) (*filters, error) {
	f := &filters{}
	for i, texts := range [][]string{c.StdoutFilters, c.StderrFilters} {
		if len(texts) == 0 || !c.Tee.any() {
			continue
		}
		file, err := run.create(attempt, []string{"filtered_stdout.log", "filtered_stderr.log"}[i])
		if err != nil {
			f.close()
			return nil, err
		}
		f.files[i], f.outs[i] = file, joblog.NewOutput(file)
		f.keep[i] = func(line []byte) bool {
			for _, t := range texts {
				if bytes.Contains(line, []byte(t)) {
					return true
				}
			}
			return false
		}
	}
	return f, nil
}

func (f *filters) close() {
	for _, file := range f.files {
		if file != nil {
			_ = file.Close()
		}
	}
}

// stream is one stream of one worker on its way through the launcher.
type stream struct {
	tail   *joblog.Tail
	file   *os.File // its log file, or nil
	theirs *os.File // what the worker writes to
	ours   *os.File // the other end, or nil for a stream that goes to its file alone
	done   chan struct{}
}

// openStream prepares stream which of a worker. start begins to copy once the worker runs.
func (a *attempt) openStream(w *worker, which Std) (*stream, error) {
	c, s := a.job.cfg, &stream{tail: joblog.NewTail(tailSize), done: make(chan struct{})}
	tee := c.Tee.Of(w.local)&which != 0
	redirect := c.Redirects.Of(w.local)&which != 0
	name := map[Std]string{Stdout: "stdout.log", Stderr: "stderr.log"}[which]
	var err error
	if tee || redirect {
		if s.file, err = a.job.run.create(a.place.attempt, strconv.Itoa(w.local), name); err != nil {
			return nil, err
		}
	}
	if redirect && !tee { // the worker writes to the file itself
		s.theirs = s.file
		close(s.done)
		return s, nil
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		if s.file != nil {
			_ = s.file.Close()
		}
		return nil, fmt.Errorf("launch: %w", err)
	}
	widen(theirs)
	s.ours, s.theirs = ours, theirs
	return s, nil
}

// sink says where the lines of a stream go.
func (a *attempt) sink(w *worker, which Std, s *stream) *joblog.Stream {
	c, sc := a.job.cfg, a.job.screen
	index := int(which) - 1
	sink := &joblog.Stream{Tail: s.tail, Shared: len(a.workers) > 1}
	if s.file != nil {
		sink.File = s.file
		sink.Trouble = func(err error) { sc.say("the log of rank %d cannot be written: %v; the job goes on", w.rank, err) }
	}
	tee := c.Tee.Of(w.local)&which != 0
	if tee {
		sink.Prefix = []byte(a.prefix(w))
		sink.Filtered, sink.Keep = a.filters.outs[index], a.filters.keep[index]
	}
	if sc.Show != nil {
		sink.Live = func(line []byte) { a.job.board.printed(w.local, index, line) }
	}
	switch {
	case !c.shown(w.local):
	case sc.Ranks && !tee:
		sink.Lines = func(line []byte) { sc.folds[index].add(w.rank, line) }
	case sc.Show != nil:
		sink.Lines = func(line []byte) { _, _ = sc.output(which).Write(slices.Concat(sink.Prefix, line, []byte{'\n'})) }
	default:
		sink.Screen = sc.output(which)
	}
	return sink
}

// prefix is what stands before the lines of a teed stream.
func (a *attempt) prefix(w *worker) string {
	host, _ := os.Hostname()
	role, _ := a.job.cfg.roleOf(w.local)
	return substitute(a.job.cfg.Prefix, map[string]string{
		"role_name": role.Name, "local_rank": strconv.Itoa(w.local), "rank": strconv.Itoa(w.rank), "hostname": host,
	})
}

// copy moves the stream until its end.
func (s *stream) copy(sink *joblog.Stream) {
	defer close(s.done)
	_ = joblog.Copy(s.ours, sink) // an error means that the screen is gone: the worker will notice
	_ = s.ours.Close()
	if s.file != nil {
		_ = s.file.Close()
	}
}

// started gives the worker's end to the worker.
func (s *stream) started() { _ = s.theirs.Close() }

// abandon closes everything of a stream whose worker was not started.
func (s *stream) abandon() {
	_ = s.theirs.Close()
	if s.ours != nil {
		_ = s.ours.Close()
	}
	if s.file != nil {
		_ = s.file.Close()
	}
}

// last returns the end of what the worker printed, as a terminal would show it.
func (s *stream) last(path string) string {
	if s.ours != nil {
		return joblog.Plain(s.tail.Bytes())
	}
	return joblog.Plain(endOf(path))
}

// endOf reads the end of a file, nil if it cannot.
func endOf(path string) []byte {
	f, err := os.Open(path) //nolint:gosec // our own log file
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if end, at := f.Seek(0, io.SeekEnd); at == nil && end > tailSize {
		_, _ = f.Seek(-tailSize, io.SeekEnd)
	} else {
		_, _ = f.Seek(0, io.SeekStart)
	}
	b, err := io.ReadAll(io.LimitReader(f, tailSize))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return b
}
