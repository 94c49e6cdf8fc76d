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

// EndFrame fills in the length of the frame that was begun when b was start bytes long.
func EndFrame(b []byte, start int) []byte { return EndFrameBefore(b, start, 0) }

// EndFrameBefore is EndFrame for a frame that has n bytes more, which are not in b.
func EndFrameBefore(b []byte, start, n int) []byte {
	n += len(b) - start - 4
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
	n := u32(b)
	if n < 5 {
		return 0, 0, cohort.Newf("tcpstore: decode", cohort.Protocol, "a frame of %d bytes, want at least 5", n)
	}
	return u32(b[4:]), int(n) + 4, nil
}

// ParseFrameRequest reads the request of a whole frame, header included. An error concerns this request only: the next
// frame can be read.
func ParseFrameRequest(frame []byte, limits *Limits, r *Request) error {
	body := frame[FrameHeader:]
	r.ID = u32(frame[4:])
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
