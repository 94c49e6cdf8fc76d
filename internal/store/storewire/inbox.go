// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import "github.com/cohort-dist/cohort"

const (
	inboxSize = 16 << 10
	// firstPiece is how much memory the announcement of a large frame gets before its bytes arrive.
	firstPiece = 1 << 20
)

// Inbox collects the frames that a client reads. A frame that does not fit into its buffer gets memory of its own, which grows
// as the bytes arrive, so that an announced length alone takes none. Its zero value is ready to use.
type Inbox struct {
	buf   []byte
	r, w  int    // the unread part of buf
	large []byte // a large frame, as far as it has arrived
	want  int    // the length of the large frame; 0: there is none
	whole bool
}

// Space returns where to read to, and Filled takes what was read: the first n bytes of it.
func (b *Inbox) Space() []byte {
	if b.want > 0 {
		if len(b.large) == cap(b.large) {
			grown := make([]byte, len(b.large), min(b.want, 2*cap(b.large)))
			copy(grown, b.large)
			b.large = grown
		}
		return b.large[len(b.large):cap(b.large)]
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
	return b.buf[b.w:]
}

// Filled is called after a read into what Space returned.
func (b *Inbox) Filled(n int) {
	if b.want > 0 {
		b.large = b.large[:len(b.large)+n]
		return
	}
	b.w += n
}

// Whole reports whether the frame that Next returned last has memory of its own, which is not used again.
func (b *Inbox) Whole() bool { return b.whole }

// Next returns the next whole frame, or nil when more has to be read. The frame is valid until the next call of Space. One of
// more than limit bytes is an error.
func (b *Inbox) Next(limit int) ([]byte, error) {
	b.whole = false
	if b.want > 0 {
		if len(b.large) < b.want {
			return nil, nil
		}
		frame := b.large
		b.large, b.want, b.whole = nil, 0, true
		return frame, nil
	}
	_, size, err := ParseFrame(b.buf[b.r:b.w])
	switch {
	case err != nil || size == 0:
		return nil, err
	case size > limit:
		return nil, cohort.Newf("tcpstore: decode", cohort.TooLarge, "an answer of %d bytes, over the limit of %d", size, limit)
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
