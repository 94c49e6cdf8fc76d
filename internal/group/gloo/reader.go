// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"io"
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// readerSize is the size of a connection's read buffer: enough for many headers and small messages in one read.
const readerSize = 16 << 10

// directRead is the payload size from which on data is read straight into the receiver's buffer.
const directRead = 4 << 10

// reader cuts a stream into headers and payloads. Large payloads do not pass through its buffer.
type reader struct {
	src        io.Reader
	moved      *atomic.Uint64 // counts what arrives for collectives
	buf        []byte
	start, end int
	inside     bool // of a frame: its end has not been read
	counts     bool // the frame is one of a collective
}

func (r *reader) init(src io.Reader, moved *atomic.Uint64) {
	r.src, r.moved, r.buf = src, moved, make([]byte, readerSize)
}

// header returns the next frame's header.
func (r *reader) header() (gloowire.Frame, error) {
	for r.end-r.start < gloowire.HeaderSize {
		r.inside = r.end > r.start
		if err := r.fill(); err != nil {
			if err == io.EOF && r.end > r.start { //nolint:errorlint // io.Reader returns it unwrapped
				err = io.ErrUnexpectedEOF
			}
			return gloowire.Frame{}, err
		}
	}
	r.inside = true
	f, err := gloowire.ParseFrame(r.buf[r.start:r.end])
	r.start += gloowire.HeaderSize
	r.counts = !gloowire.IsPointToPoint(f.Slot)
	r.count(gloowire.HeaderSize)
	return f, err
}

// count records bytes that have arrived. Messages do not count: a rank can send them while another one is dead.
func (r *reader) count(n int) {
	if r.counts {
		r.moved.Add(uint64(n)) //nolint:gosec // not negative
	}
}

// fill reads once into the free part of the buffer.
func (r *reader) fill() error {
	if r.start == r.end {
		r.start, r.end = 0, 0
	} else if r.end == len(r.buf) || r.start > len(r.buf)/2 {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	failpoint.At("gloo.pair.fill")
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// payload fills dst.
func (r *reader) payload(dst []byte) error {
	n := copy(dst, r.buf[r.start:r.end])
	r.count(n)
	r.start += n
	dst = dst[n:]
	for len(dst) >= directRead {
		failpoint.At("gloo.pair.body")
		n, err := r.src.Read(dst)
		r.count(n)
		dst = dst[n:]
		if n == 0 && err != nil {
			return unexpected(err)
		}
	}
	for len(dst) > 0 {
		if err := r.fill(); err != nil {
			return unexpected(err)
		}
		n := copy(dst, r.buf[r.start:r.end])
		r.count(n)
		r.start += n
		dst = dst[n:]
	}
	return nil
}

// discard reads n bytes and forgets them.
func (r *reader) discard(n uint64) error {
	for n > 0 {
		if r.start == r.end {
			if err := r.fill(); err != nil {
				return unexpected(err)
			}
		}
		have := min(n, uint64(r.end-r.start)) //nolint:gosec // end is not before start
		r.start += int(have)                  //nolint:gosec // at most the buffer's size
		n -= have
	}
	return nil
}

// drain reads until the stream ends.
func (r *reader) drain() error {
	for {
		r.start, r.end = 0, 0
		if err := r.fill(); err != nil {
			return err
		}
	}
}

// unexpected turns the end of the stream inside a message into an error.
func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // io.Reader returns it unwrapped
		return io.ErrUnexpectedEOF
	}
	return err
}
