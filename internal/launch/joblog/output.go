// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package joblog handles the output of a job's workers. It copies it to the screen in whole lines, with or without a
// prefix, and to files, and keeps the last lines of each worker for the report of a failure.
//
// [Output] is a screen or file that several workers share. [Copy] copies one stream of one worker until it ends. [Pipe]
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
	w  io.Writer
	mu struct {
		sync.Mutex
		unfinished any // the writer whose line is not finished, or nil
		scratch    []byte
		err        error
	}
}

// NewOutput returns an Output that writes to w.
func NewOutput(w io.Writer) *Output { return &Output{w: w} }

// Write writes text between the lines of others: messages of the launcher itself.
func (o *Output) Write(text []byte) (int, error) {
	if err := o.put(o, nil, text); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Err returns why it cannot be written any more, nil if it can.
func (o *Output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.err
}

// put writes text, which ends with a line or with an unfinished one, for a writer. A prefix is put before every line.
func (o *Output) put(writer any, prefix, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	failpoint.At("joblog.output.lock")
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.err != nil {
		return o.mu.err
	}
	out := text
	foreign := o.mu.unfinished != nil && o.mu.unfinished != writer
	if foreign || len(prefix) > 0 {
		out = o.mu.scratch[:0]
		if foreign {
			out = append(out, '\n')
		}
		continued := o.mu.unfinished == writer
		out = appendPrefixed(out, prefix, text, continued)
		o.mu.scratch = out
		if cap(out) > 1<<20 {
			o.mu.scratch = nil
		}
	}
	o.mu.unfinished = nil
	if out[len(out)-1] != '\n' {
		o.mu.unfinished = writer
	}
	failpoint.At("joblog.output.write")
	_, o.mu.err = o.w.Write(out)
	return o.mu.err
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
	return &Filter{out: NewOutput(file), file: file, texts: texts}
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
