// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// tailSize is what is kept of the end of each stream.
const tailSize = 32 << 10

// Pipe takes one stream of one worker, from what the worker writes to until its end.
type Pipe struct {
	tail   *Tail
	file   *os.File // its log file, or nil
	theirs *os.File // what the worker writes to
	ours   *os.File // the other end, or nil for a stream that goes to its file alone
	done   chan struct{}
}

// NewPipe prepares a stream and takes over its log file, which may be nil. With direct, the worker writes to the file
// itself, and nothing is copied.
func NewPipe(file *os.File, direct bool) (*Pipe, error) {
	p := &Pipe{tail: NewTail(tailSize), file: file, done: make(chan struct{})}
	if direct {
		p.theirs = file
		close(p.done)
		return p, nil
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, fmt.Errorf("joblog: %w", err)
	}
	widen(theirs)
	p.ours, p.theirs = ours, theirs
	return p, nil
}

// Tail holds the end of a stream that is copied.
func (p *Pipe) Tail() *Tail { return p.tail }

// Worker is what the worker writes to.
func (p *Pipe) Worker() *os.File { return p.theirs }

// Done is closed when the stream has ended and everything has been copied.
func (p *Pipe) Done() <-chan struct{} { return p.done }

// Start begins to copy once the worker has its end: to the log file, and to where sink says.
func (p *Pipe) Start(sink *Stream) {
	_ = p.theirs.Close()
	if p.ours == nil {
		return
	}
	sink.Tail = p.tail
	if p.file != nil {
		sink.File = p.file
	}
	go func() { // joined through Done
		defer close(p.done)
		_ = Copy(p.ours, sink) // an error means that the screen is closed: the worker will notice
		_ = p.ours.Close()
		if p.file != nil {
			_ = p.file.Close()
		}
	}()
}

// Full returns the folder of the worker's log file if it writes there itself and the file system is full; "" otherwise.
func (p *Pipe) Full() string {
	if p.ours != nil || p.file == nil {
		return ""
	}
	dir := filepath.Dir(p.file.Name())
	f, err := os.CreateTemp(dir, "full-") // quotas count too, so writing finds more than asking
	if err == nil {
		_, err = f.Write(make([]byte, pieceSize))
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	if noRoom(err) {
		return dir
	}
	return ""
}

// Break ends the copying though some process still has the stream open.
func (p *Pipe) Break() {
	if p.ours != nil {
		_ = p.ours.Close()
	}
}

// Abandon closes everything of a stream whose worker was not started.
func (p *Pipe) Abandon() {
	_ = p.theirs.Close()
	p.Break()
	if p.file != nil {
		_ = p.file.Close()
	}
}

// Last returns the end of what the worker printed, as a terminal would show it.
func (p *Pipe) Last() string {
	if p.ours != nil {
		return Plain(p.tail.Bytes())
	}
	return Plain(endOf(p.file.Name()))
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
