// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/cohort-dist/cohort/internal/tensor/recvalloc"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// readBuffer takes many small frames in one read. What is longer is read straight into its own memory.
const readBuffer = 64 << 10

// maxOpening bounds a hello and a proof.
const maxOpening = 1 << 10

// frameReader cuts the byte stream into frames.
type frameReader struct {
	link *Link
	conn net.Conn
	buf  []byte
	r, w int
	now  struct { // what is read without waiting
		b   []byte
		n   int
		err error
		fn  func(fd uintptr) bool
	}
	// failed is the error of a caller's read: nothing more is read.
	failed error
}

func newFrameReader(l *Link, conn net.Conn, buffered []byte) *frameReader {
	r := &frameReader{link: l, conn: conn, buf: make([]byte, max(readBuffer, len(buffered)))}
	r.now.fn = r.readNow
	r.w = copy(r.buf, buffered)
	return r
}

func (r *frameReader) fill() error {
	if r.r > 0 {
		copy(r.buf, r.buf[r.r:r.w])
		r.w -= r.r
		r.r = 0
	}
	n, err := r.read(r.buf[r.w:])
	r.w += n
	if n > 0 {
		r.link.reads.Add(1)
		return nil
	}
	return err
}

func (r *frameReader) read(b []byte) (int, error) {
	if r.failed != nil {
		return 0, r.failed
	}
	if r.link.raw == nil || len(b) == 0 {
		failpoint.At("cohortwire.link.fill")
		return r.conn.Read(b)
	}
	r.now.b = b
	failpoint.At("cohortwire.link.fill.now")
	err := r.link.raw.Read(r.now.fn)
	r.now.b = nil
	switch {
	case err != nil:
		return 0, err
	case r.now.err != nil:
		return 0, os.NewSyscallError("read", r.now.err)
	case r.now.n == 0:
		return 0, io.EOF
	}
	return r.now.n, nil
}

// readNow is what read does with the socket.
func (r *frameReader) readNow(fd uintptr) bool {
	r.now.n, r.now.err = rawRead(fd, r.now.b)
	for errors.Is(r.now.err, syscall.EINTR) {
		r.now.n, r.now.err = rawRead(fd, r.now.b)
	}
	return !errors.Is(r.now.err, syscall.EAGAIN)
}

// take fills b, from the buffer and then from the connection.
func (r *frameReader) take(b []byte) error {
	n := copy(b, r.buf[r.r:r.w])
	r.r += n
	for b = b[n:]; len(b) > 0; {
		if len(b) < readBuffer/2 {
			if err := r.fill(); err != nil {
				return unexpected(err)
			}
			n := copy(b, r.buf[r.r:r.w])
			r.r += n
			b = b[n:]
			continue
		}
		n, err := r.read(b)
		b = b[n:]
		if n > 0 {
			r.link.reads.Add(1)
		} else if err != nil {
			return unexpected(err)
		}
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // as io.ReadFull
		return io.ErrUnexpectedEOF
	}
	return err
}

// whole reports whether the buffer holds all of the next frame: to read it does not wait.
func (r *frameReader) whole() bool {
	have := r.w - r.r
	return have >= HeaderSize && uint64(have) >= r.length()
}

// length is the length of the next frame, whose header is there. A sum that wraps is refused later.
func (r *frameReader) length() uint64 {
	b := r.buf[r.r:]
	return HeaderSize + uint64(binary.LittleEndian.Uint32(b)) + binary.LittleEndian.Uint64(b[40:])
}

// next returns the next frame.
func (r *frameReader) next() (*Frame, error) {
	for r.w-r.r < HeaderSize {
		if err := r.fill(); err != nil {
			if r.w > r.r {
				err = unexpected(err)
			}
			return nil, err
		}
	}
	h, err := ParseHeader(r.buf[r.r:], r.link.cfg.Limits)
	if err != nil {
		return nil, err
	}
	r.r += HeaderSize
	body, err := r.body(int(h.Body))
	if err != nil {
		return nil, err
	}
	f, lengths, err := h.Parse(body)
	if err != nil {
		return nil, err
	}
	for _, n := range lengths {
		s, err := recvalloc.Storage(n, r.link.cfg.Alloc, r.link.cfg.Ahead, r.take)
		if err != nil {
			f.Release()
			return nil, err
		}
		f.Storages = append(f.Storages, s)
	}
	return f, nil
}

// opening returns one of the first two frames, which are short.
func (r *frameReader) opening() (*Frame, error) {
	for r.w-r.r < HeaderSize {
		if err := r.fill(); err != nil {
			return nil, unexpected(err)
		}
	}
	if n := r.length(); n > maxOpening {
		return nil, bad("a first frame of %d bytes", n)
	}
	return r.next()
}

// body reads n bytes into memory of their own. Memory for a long body is allocated only as its bytes arrive.
func (r *frameReader) body(n int) ([]byte, error) {
	const step = 1 << 20
	b := make([]byte, min(n, step))
	if err := r.take(b); err != nil {
		return nil, err
	}
	for len(b) < n {
		grown := make([]byte, min(n, 2*len(b)))
		done := copy(grown, b)
		if err := r.take(grown[done:]); err != nil {
			return nil, err
		}
		b = grown
	}
	return b, nil
}
