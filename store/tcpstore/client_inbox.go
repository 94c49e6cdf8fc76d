// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"io"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

const (
	inboxSize = 16 << 10
	// firstPiece is how much memory the announcement of a large frame gets before its bytes arrive.
	firstPiece = 1 << 20
)

// inbox collects frames from a connection. A frame that does not fit into its buffer gets memory of its own, which grows
// as the bytes arrive, so that an announced length alone takes none.
type inbox struct {
	buf   []byte
	r, w  int    // the unread part of buf
	large []byte // a large frame, as far as it has arrived
	want  int    // the length of the large frame; 0: there is none
	whole bool   // the frame that next returned is a large one, whose memory is not used again
}

// fill reads once.
func (b *inbox) fill(conn io.Reader) error {
	if b.want > 0 {
		if len(b.large) == cap(b.large) {
			grown := make([]byte, len(b.large), min(b.want, 2*cap(b.large)))
			copy(grown, b.large)
			b.large = grown
		}
		n, err := conn.Read(b.large[len(b.large):cap(b.large)])
		b.large = b.large[:len(b.large)+n]
		return readResult(n, err)
	}
	if b.buf == nil {
		b.buf = make([]byte, inboxSize)
	}
	if b.r == b.w {
		b.r, b.w = 0, 0
	} else if b.w == len(b.buf) {
		b.w = copy(b.buf, b.buf[b.r:b.w])
		b.r = 0
	}
	n, err := conn.Read(b.buf[b.w:])
	b.w += n
	return readResult(n, err)
}

// readResult keeps an error for the next read when this one brought bytes.
func readResult(n int, err error) error {
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.ErrNoProgress
	}
	return err
}

// next returns the next whole frame, or nil when more has to be read. The frame is valid until the next fill.
func (b *inbox) next() ([]byte, error) {
	b.whole = false
	if b.want > 0 {
		if len(b.large) < b.want {
			return nil, nil
		}
		frame := b.large
		b.large, b.want, b.whole = nil, 0, true
		return frame, nil
	}
	_, size, err := wire.ParseFrame(b.buf[b.r:b.w])
	switch {
	case err != nil || size == 0:
		return nil, err
	case size > maxReply:
		return nil, dist.Newf("tcpstore: decode", dist.TooLarge, "an answer of %d bytes, over the limit of %d", size, maxReply)
	case size <= b.w-b.r:
		frame := b.buf[b.r : b.r+size]
		b.r += size
		return frame, nil
	case size > len(b.buf):
		b.large = append(make([]byte, 0, min(size, firstPiece)), b.buf[b.r:b.w]...)
		b.r, b.w = 0, 0
		b.want = size
	}
	return nil, nil
}
