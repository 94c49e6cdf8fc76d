// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"encoding/binary"
	"math"

	"github.com/cohort-dist/cohort"
)

// A frame of the Native dialect is
//
//	u32 length of the rest | u32 id | u8 code   | arguments     a request
//	u32 length of the rest | u32 id | u8 status | body          a reply
//
// so what follows a request's id is exactly a request of the V dialect.

// FrameHeader is the number of bytes before a frame's code or status.
const FrameHeader = 8

// BeginFrame starts a frame at the end of b; what is appended next (a request's code and arguments, or a status and a
// body) belongs to it. EndFrame completes it.
func BeginFrame(b []byte, id uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, 0, 0, 0, 0), id)
}

// EndFrame fills in the length of the frame that was begun when b was start bytes long. The frame has more bytes behind those of b, or 0.
func EndFrame(b []byte, start, more int) []byte {
	n := more + len(b) - start - 4
	if uint64(n) > math.MaxUint32 { //nolint:gosec // not negative
		panic("tcpstore: a frame over 4 GiB")
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(n)) //nolint:gosec // just checked
	return b
}

// ParseFrame reads the header of the frame at the start of b. size is the length of the whole frame, known as soon as
// its header is there; 0 means that b is too short even for that. A frame too short for an id and a code is an error.
func ParseFrame(b []byte) (id uint32, size int, err error) {
	if len(b) < FrameHeader {
		return 0, 0, nil
	}
	n := binary.LittleEndian.Uint32(b)
	if n < 5 {
		return 0, 0, cohort.Newf("tcpstore: decode", cohort.Protocol, "a frame of %d bytes, want at least 5", n)
	}
	return binary.LittleEndian.Uint32(b[4:]), int(n) + 4, nil
}

// ParseFrameRequest reads the request of a whole frame, header included. An error concerns this request only: the next
// frame can be read.
func ParseFrameRequest(frame []byte, limits *Limits, r *Request) error {
	body := frame[FrameHeader:]
	r.ID = binary.LittleEndian.Uint32(frame[4:])
	var seq, ack uint64
	var sub uint32
	if body[0] == byte(Numbered) {
		if len(body) <= numberedHeader {
			return cohort.Newf("tcpstore: decode", cohort.Protocol, "a numbered request of %d bytes", len(body))
		}
		seq, ack = binary.LittleEndian.Uint64(body[1:]), binary.LittleEndian.Uint64(body[9:])
		sub = binary.LittleEndian.Uint32(body[17:])
		if body = body[numberedHeader:]; seq == 0 {
			return cohort.New("tcpstore: decode", cohort.Protocol, "a numbered request with the number 0")
		}
	}
	if parseWhole(Native, body, limits, r) != len(body) {
		return faultOf(frame, body, limits, r)
	}
	if seq != 0 { // session and leave have such fields of their own
		r.Seq, r.Ack, r.Sub = seq, ack, sub
	}
	return nil
}

// numberedHeader is the number of bytes before the request in a numbered one:
//
//	u8 code | u64 number | u64 acknowledged | u32 client | code and arguments of the request
const numberedHeader = 21

// AppendNumbered puts what stands in front of a numbered request behind b; the request follows.
func AppendNumbered(b []byte, seq, ack uint64, sub uint32) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, byte(Numbered)), seq)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(b, ack), sub)
}

// faultOf returns what is wrong with the request of a whole frame.
func faultOf(frame, body []byte, limits *Limits, r *Request) error {
	var p Progress
	n, err := ParseRequest(Native, body, limits, &p, r)
	switch {
	case err != nil:
		return err
	case n == 0:
		return cohort.Newf("tcpstore: decode", cohort.Protocol, "a frame of %d bytes ends inside its request", len(frame))
	case n != len(body):
		return cohort.Newf("tcpstore: decode", cohort.Protocol, "%s: %d bytes too many in its frame", r.Op, len(body)-n)
	}
	return nil
}

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

// Next returns the next whole frame, or nil when more has to be read. The frame is valid until the next call of Space, or for ever if it
// is kept: then its memory is not used again. One of more than limit bytes is an error.
func (b *Inbox) Next(limit int) (frame []byte, kept bool, err error) {
	if b.want > 0 {
		if len(b.large) < b.want {
			return nil, false, nil
		}
		frame = b.large
		b.large, b.want = nil, 0
		return frame, true, nil
	}
	_, size, err := ParseFrame(b.buf[b.r:b.w])
	switch {
	case err != nil || size == 0:
		return nil, false, err
	case size > limit:
		return nil, false, cohort.Newf("tcpstore: decode", cohort.TooLarge, "an answer of %d bytes, over the limit of %d", size, limit)
	case size <= b.w-b.r:
		frame = b.buf[b.r : b.r+size]
		b.r += size
		return frame, false, nil
	case size > len(b.buf):
		b.large = append(make([]byte, 0, min(size, firstPiece)), b.buf[b.r:b.w]...)
		b.r, b.w = 0, 0
		b.want = size
	}
	return nil, false, nil
}
