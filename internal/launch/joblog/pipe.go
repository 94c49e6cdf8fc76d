// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
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
		_ = copyStream(p.ours, sink) // an error means that the screen is closed: the worker will notice
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

// Tail keeps the last bytes of a stream.
type Tail struct {
	mu struct {
		sync.Mutex
		buf []byte // at most twice size
		cut bool
		at  time.Time // of the last piece
	}
	size int
}

// NewTail returns a Tail that keeps size bytes.
func NewTail(size int) *Tail { return &Tail{size: size} }

func (t *Tail) add(piece []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.at = time.Now()
	if len(piece) > t.size {
		piece = piece[len(piece)-t.size:]
		t.mu.cut = true
	}
	if over := len(t.mu.buf) + len(piece) - 2*t.size; over > 0 {
		t.mu.buf = slices.Delete(t.mu.buf, 0, len(t.mu.buf)-t.size+len(piece)/2)
		t.mu.cut = true
	}
	t.mu.buf = append(t.mu.buf, piece...)
}

// Bytes returns the last bytes, beginning with a whole line if it can.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, cut := t.mu.buf, t.mu.cut
	if len(b) > t.size {
		b, cut = b[len(b)-t.size:], true
	}
	if cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 && i+1 < len(b) {
			b = b[i+1:]
		}
	}
	return bytes.Clone(b)
}

// liveEnd is how much of the end is looked at for a line that is not finished.
const liveEnd = 4096

// Live returns the line that is not finished, as a terminal would show it, and when something last came; zero: never.
func (t *Tail) Live() (line string, at time.Time) {
	t.mu.Lock()
	end := bytes.Clone(t.mu.buf[max(0, len(t.mu.buf)-liveEnd):])
	at = t.mu.at
	t.mu.Unlock()
	if bytes.HasSuffix(end, []byte{'\n'}) {
		return "", at
	}
	var r rows
	r.feed(end, time.Time{}, func([]byte) {})
	return string(r.live()), at
}
