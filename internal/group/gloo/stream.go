// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"io"
	"net"
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
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

// maxBatch bounds the frames of one writev.
const maxBatch = 64

// batch is a run of frames on its way to the kernel.
type batch struct {
	headers [maxBatch * gloowire.HeaderSize]byte
	ops     [maxBatch]*transport.Op // of its data frames
	nops    int
	bufs    [2 * maxBatch][]byte // headers and payloads in order
	rest    [][]byte             // the part of bufs that is not written yet
	err     error                // of the last attempt

	iov     iovecs
	attempt func(fd uintptr) bool // made once, so that writing does not allocate
}

// fill takes frames from the queue. Called with d.mu held by the owner of the batch.
func (p *pair) fill() {
	b := &p.batch
	n := min(len(p.out), maxBatch)
	b.nops = 0
	bufs, headers := b.bufs[:0], b.headers[:0]
	run := 0 // start of the headers that are not in bufs yet
	for i := range n {
		f := &p.out[i]
		at := len(headers)
		headers = headers[:at+gloowire.HeaderSize]
		f.frame.Put(headers[at:])
		if f.op == nil {
			continue
		}
		b.ops[b.nops] = f.op
		b.nops++
		bufs = append(bufs, headers[run:])
		run = len(headers)
		if len(f.op.Buf) > 0 {
			bufs = append(bufs, f.op.Buf)
		}
	}
	if run < len(headers) {
		bufs = append(bufs, headers[run:])
	}
	b.rest = bufs
	rest := copy(p.out, p.out[n:])
	clear(p.out[rest:])
	p.out = p.out[:rest]
}

// claim makes the caller the owner of the batch, with frames in it. Called with d.mu held.
func (p *pair) claim() bool {
	if p.writing || p.conn == nil || len(p.out) == 0 {
		return false
	}
	p.writing = true
	p.fill()
	return true
}

// push writes the owned batch, and what is queued meanwhile, as far as that goes without waiting. The rest is the
// writer goroutine's.
func (p *pair) push() {
	if p.raw == nil {
		p.handOver()
		return
	}
	for {
		failpoint.At("gloo.pair.write")
		done, err := p.tryWrite()
		if err == nil && !done {
			p.handOver()
			return
		}
		if !p.next(err) {
			return
		}
	}
}

// handOver gives the batch to the writer goroutine, or ends it if that one has ended.
func (p *pair) handOver() {
	failpoint.At("gloo.pair.handover")
	p.wake <- struct{}{} // has room: only the owner of the batch sends
	select {
	case <-p.stop:
		select {
		case <-p.wake:
			p.next(net.ErrClosed)
		default:
		}
	default:
	}
}

// next ends a written or failed batch and takes the next one; false when there is none.
func (p *pair) next(err error) bool {
	if err != nil {
		p.stopWriting(err)
	}
	b := &p.batch
	failpoint.At("gloo.pair.next")
	p.d.mu.Lock()
	if err != nil {
		err = p.cause()
	}
	for i := range b.nops {
		b.ops[i].Complete(err)
		b.ops[i] = nil
	}
	clear(b.bufs[:])
	b.nops, b.rest = 0, nil
	if err == nil && len(p.out) > 0 {
		p.fill()
		p.d.mu.Unlock()
		return true
	}
	p.writing = false
	if p.flushed != nil {
		close(p.flushed)
		p.flushed = nil
	}
	p.d.mu.Unlock()
	return false
}

// writeLoop writes what a poster or the reader could not write at once.
func (p *pair) writeLoop() {
	defer p.d.wg.Done()
	for {
		failpoint.At("gloo.pair.idle")
		select {
		case <-p.wake:
		case <-p.stop:
			select {
			case <-p.wake: // the batch is ours to end
				p.next(net.ErrClosed)
			default:
			}
			return
		}
		for more := true; more; {
			failpoint.At("gloo.pair.writer")
			more = p.next(p.write())
		}
	}
}

// written takes n bytes off the front of the batch and reports whether nothing is left.
func (b *batch) written(n int) bool {
	for len(b.rest) > 0 && n >= len(b.rest[0]) {
		n -= len(b.rest[0])
		b.rest = b.rest[1:]
	}
	if n > 0 {
		b.rest[0] = b.rest[0][n:]
	}
	return len(b.rest) == 0
}

// writeAll hands the batch to the connection's own Write.
func (p *pair) writeAll() error {
	bufs := net.Buffers(p.batch.rest)
	_, err := bufs.WriteTo(p.conn)
	p.batch.rest = nil
	return err
}
