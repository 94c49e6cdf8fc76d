// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

// This file is the bytes that wait to be sent to a client, without copies of the large ones.

// sendBuffer is one stream of bytes: those of Buf, and between them values that are referred to. A value that was referred to must never
// change, and counts as a copy would until it is sent.
type sendBuffer struct {
	// Buf is what is not referred to, a part of it sent already. More is put behind it.
	Buf []byte

	sent     int   // bytes of Buf that are gone
	base     int   // bytes that were before Buf and are gone
	refs     []ref // the values
	firstRef int   // those before are sent
	refOwed  int   // bytes of refs that are not sent
	refHeld  int   // their memory
}

// ref is a value in a stream.
type ref struct {
	at   int    // how many of the bytes that ever were in Buf stand before it
	data []byte // the part that is not sent yet
	held int    // the memory that it counts for
}

const (
	refCost = 64
	// keepRefs is how many references an idle stream has room for.
	keepRefs = 16
)

// Owed is how many bytes wait to be sent.
func (s *sendBuffer) Owed() int { return len(s.Buf) - s.sent + s.refOwed }

// Memory is what the stream holds.
func (s *sendBuffer) Memory() int { return cap(s.Buf) + s.refHeld }

// Refer puts value, which must not change any more, behind the stream. The memory that it keeps is that of data.
func (s *sendBuffer) Refer(value, data []byte) {
	held := cap(data) + refCost
	s.refs = append(s.refs, ref{at: s.base + len(s.Buf), data: value, held: held})
	s.refOwed += len(value)
	s.refHeld += held
}

// ReferredSince is how many bytes were referred to since Buf had start bytes and got at least one more.
func (s *sendBuffer) ReferredSince(start int) (n int) {
	for i := len(s.refs) - 1; i >= s.firstRef && s.refs[i].at > s.base+start; i-- {
		n += len(s.refs[i].data)
	}
	return n
}

// lastReferred is the value that was referred to last since Buf had start bytes, or nil.
func (s *sendBuffer) lastReferred(start int) []byte {
	if n := len(s.refs); n > s.firstRef && s.refs[n-1].at > s.base+start {
		return s.refs[n-1].data
	}
	return nil
}

// Pending appends to pieces what waits to be sent, up to limit bytes of it.
func (s *sendBuffer) Pending(pieces [][]byte, limit int) [][]byte {
	if s.refOwed == 0 {
		if rest := s.Buf[s.sent:]; len(rest) > 0 {
			pieces = append(pieces, rest[:min(len(rest), limit)])
		}
		return pieces
	}
	at := s.sent
	put := func(b []byte) {
		if b = b[:min(len(b), limit)]; len(b) > 0 {
			pieces = append(pieces, b)
			limit -= len(b)
		}
	}
	for i := s.firstRef; i < len(s.refs) && limit > 0; i++ {
		r := &s.refs[i]
		put(s.Buf[at : r.at-s.base])
		put(r.data)
		at = r.at - s.base
	}
	put(s.Buf[at:])
	return pieces
}

// Shed takes n bytes off the front.
func (s *sendBuffer) Shed(n int) {
	for ; s.firstRef < len(s.refs); s.firstRef++ {
		r := &s.refs[s.firstRef]
		own := min(n, r.at-s.base-s.sent)
		s.sent += own
		n -= own
		gone := min(n, len(r.data))
		r.data = r.data[gone:]
		s.refOwed -= gone
		n -= gone
		if len(r.data) > 0 {
			return
		}
		s.refHeld -= r.held
		*r = ref{}
	}
	if s.sent += n; s.sent == len(s.Buf) {
		s.Buf, s.sent, s.base = s.Buf[:0], 0, 0 // forgotten, but its memory is kept
	}
	s.refs, s.firstRef = s.refs[:0], 0
	if cap(s.refs) > keepRefs {
		s.refs = nil
	}
}

// Compact gives back the memory of what was sent. It returns how many bytes it copied.
func (s *sendBuffer) Compact() (copied int) {
	if n := s.firstRef; n > 32 && n > len(s.refs)/2 {
		copied = refCost * (len(s.refs) - n)
		rest := copy(s.refs, s.refs[n:])
		clear(s.refs[rest:])
		s.refs, s.firstRef = s.refs[:rest], 0
	}
	if s.sent > len(s.Buf)/2 {
		copied += len(s.Buf) - s.sent
		s.base += s.sent
		s.Buf, s.sent = s.Buf[:copy(s.Buf, s.Buf[s.sent:])], 0
	}
	return copied
}

// Clear forgets everything, with its memory.
func (s *sendBuffer) Clear() { *s = sendBuffer{} }
