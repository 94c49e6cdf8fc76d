// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package joblog handles the output of a job's workers. It copies it to the screen in whole lines, with or without a
// prefix, and to files, and keeps the last lines of each worker for the report of a failure.
//
// [Output] is a screen or file that several workers share. copyStream copies one stream of one worker until it ends. [Pipe]
// is such a stream from the worker on. [Folding] merges identical lines of several workers.
package joblog

import (
	"bytes"
	"io"
	"os"
	"sync"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Output is shared by streams. Each writes whole lines; a piece of a line that stands still for a while is written as it
// is, and the next writer begins a new line.
type Output struct {
	w    io.Writer
	line *line
	err  error // under the lock of line
}

// line is where the next character goes. Several outputs share it if they end in one terminal or file.
type line struct {
	mu         sync.Mutex
	unfinished any // the writer whose line is not finished, or nil
	scratch    []byte
}

// newOutput returns an Output that writes to w.
func newOutput(w io.Writer) *Output { return &Output{w: w, line: new(line)} }

// NewOutputs returns outputs that write to w and to v. If these are one terminal, pipe or file, as after 2>&1, neither
// continues a line of the other.
func NewOutputs(w, v io.Writer) (*Output, *Output) {
	a := newOutput(w)
	switch {
	case w == v:
		return a, a
	case sameFile(w, v):
		return a, &Output{w: v, line: a.line}
	}
	return a, newOutput(v)
}

func sameFile(w, v io.Writer) bool {
	f, ok := w.(*os.File)
	g, both := v.(*os.File)
	if !ok || !both {
		return false
	}
	a, errA := f.Stat()
	b, errB := g.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Terminal reports whether the output is a terminal, or another device that does not keep what it is sent.
func (o *Output) Terminal() bool {
	f, ok := o.w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Write writes text between the lines of others: messages of the launcher itself.
func (o *Output) Write(text []byte) (int, error) {
	if err := o.put(o, nil, text); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Err returns why it cannot be written any more, nil if it can.
func (o *Output) Err() error {
	o.line.mu.Lock()
	defer o.line.mu.Unlock()
	return o.err
}

// put writes text, which ends with a line or with an unfinished one, for a writer. A prefix is put before every line.
func (o *Output) put(writer any, prefix, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	failpoint.At("joblog.output.lock")
	o.line.mu.Lock()
	defer o.line.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	out := o.line.add(writer, prefix, text)
	failpoint.At("joblog.output.write")
	_, o.err = o.w.Write(out)
	return o.err
}

// add returns what to write so that text does not continue a line of another writer.
func (l *line) add(writer any, prefix, text []byte) []byte {
	out := text
	foreign := l.unfinished != nil && l.unfinished != writer
	if foreign || len(prefix) > 0 {
		out = l.scratch[:0]
		if foreign {
			out = append(out, '\n')
		}
		out = appendPrefixed(out, prefix, text, l.unfinished == writer)
		if l.scratch = out; cap(out) > 1<<20 {
			l.scratch = nil
		}
	}
	l.unfinished = nil
	if out[len(out)-1] != '\n' {
		l.unfinished = writer
	}
	return out
}

// appendPrefixed appends text with prefix before each of its lines; the first one may continue a line.
func appendPrefixed(out, prefix, text []byte, continued bool) []byte {
	for len(text) > 0 {
		if !continued {
			out = append(out, prefix...)
		}
		continued = false
		end := lineEnd(text)
		out = append(out, text[:end]...)
		text = text[end:]
	}
	return out
}

// Filter is a file for the lines of several streams that hold one of some texts. A nil Filter holds none.
type Filter struct {
	out   *Output
	file  *os.File
	texts []string
}

// NewFilter returns a Filter that owns the file.
func NewFilter(file *os.File, texts []string) *Filter {
	return &Filter{out: newOutput(file), file: file, texts: texts}
}

// Apply has a stream hand its lines to the filter.
func (f *Filter) Apply(s *Stream) {
	if f != nil {
		s.Filtered, s.Keep = f.out, f.keep
	}
}

func (f *Filter) keep(line []byte) bool {
	for _, t := range f.texts {
		if bytes.Contains(line, []byte(t)) {
			return true
		}
	}
	return false
}

// Close closes the file.
func (f *Filter) Close() {
	if f != nil {
		_ = f.file.Close()
	}
}
