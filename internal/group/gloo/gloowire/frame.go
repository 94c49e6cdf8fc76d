// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gloowire encodes and decodes what gloo puts into the store and on its connections: address records, the preamble
// of a connection, and the frames that carry messages. It does no I/O.
//
// Everything is little endian, as on every platform that PyTorch runs gloo on, except the port and the IP address inside
// a socket address. docs/wire/gloo.md has the tables.
package gloowire

import (
	"encoding/binary"
	"fmt"

	"github.com/cohort-dist/cohort"
)

// HeaderSize is the length of a frame's header; only Data frames have a payload behind it.
const HeaderSize = 48

// PreambleSize is the length of the identifier that a dialler writes first in generations B to D.
const PreambleSize = 8

// maxPayload bounds the payload of one frame. gloo itself has no bound; this one keeps 48+length within an int64.
const maxPayload = 1 << 46

// Opcode describes what a frame is.
type Opcode uint64

// The opcodes. SendBuffer belongs to gloo's older algorithms; PyTorch never sends it.
const (
	SendBuffer Opcode = iota
	Data              // SEND_UNBOUND_BUFFER: a message
	SendReady         // NOTIFY_SEND_READY: a message is waiting here
	RecvReady         // NOTIFY_RECV_READY: there is room for a message here
)

// NoticeOpcode marks a [Notice]. It is cohort's own and is sent to Go ranks only.
const NoticeOpcode Opcode = 'c' | 'o'<<8 | 'h'<<16 | 'o'<<24 | 'r'<<32 | 't'<<40 | 1<<48

// String returns gloo's name of the opcode.
func (o Opcode) String() string {
	switch o {
	case SendBuffer:
		return "SEND_BUFFER"
	case Data:
		return "SEND_UNBOUND_BUFFER"
	case SendReady:
		return "NOTIFY_SEND_READY"
	case RecvReady:
		return "NOTIFY_RECV_READY"
	case NoticeOpcode:
		return "NOTICE"
	}
	return fmt.Sprintf("opcode %d", uint64(o))
}

// Frame is the header of one frame. Length is the size of the payload that follows a Data frame, of the message that a
// SendReady announces, and of the room that a RecvReady offers.
type Frame struct {
	Opcode Opcode
	Slot   uint64
	Length uint64
}

// Put writes the header to the first HeaderSize bytes of b. The two offset fields are always zero in what PyTorch uses.
func (f Frame) Put(b []byte) {
	_ = b[HeaderSize-1]
	total := uint64(HeaderSize)
	if f.Opcode == Data || f.Opcode == NoticeOpcode {
		total += f.Length
	}
	binary.LittleEndian.PutUint64(b[0:], total)
	binary.LittleEndian.PutUint64(b[8:], uint64(f.Opcode))
	binary.LittleEndian.PutUint64(b[16:], f.Slot)
	binary.LittleEndian.PutUint64(b[24:], 0)
	binary.LittleEndian.PutUint64(b[32:], f.Length)
	binary.LittleEndian.PutUint64(b[40:], 0)
}

// ParseFrame reads a header from the first HeaderSize bytes of b. It refuses what would leave the stream out of step: a
// header whose total does not fit its length, an old-style message, an unknown opcode that claims a payload.
// Unknown opcodes without payload are returned; gloo ignores them and so must the caller.
func ParseFrame(b []byte) (Frame, error) {
	_ = b[HeaderSize-1]
	total := binary.LittleEndian.Uint64(b[0:])
	f := Frame{
		Opcode: Opcode(binary.LittleEndian.Uint64(b[8:])),
		Slot:   binary.LittleEndian.Uint64(b[16:]),
		Length: binary.LittleEndian.Uint64(b[32:]),
	}
	switch f.Opcode {
	case Data:
		if f.Length > maxPayload || total != HeaderSize+f.Length {
			return f, cohort.Newf("gloo: read frame", cohort.Protocol, "data frame of %d bytes with a payload of %d", total, f.Length)
		}
	case NoticeOpcode:
		if f.Length > maxNotice || total != HeaderSize+f.Length {
			return f, cohort.Newf("gloo: read frame", cohort.Protocol, "notice of %d bytes with a text of %d", total, f.Length)
		}
	case SendReady, RecvReady:
		if total != HeaderSize {
			return f, cohort.Newf("gloo: read frame", cohort.Protocol, "%s frame of %d bytes, want %d", f.Opcode, total, HeaderSize)
		}
	case SendBuffer:
		return f, cohort.New("gloo: read frame", cohort.Protocol, "SEND_BUFFER frames are not part of what PyTorch uses")
	default:
		if total != HeaderSize {
			return f, cohort.Newf("gloo: read frame", cohort.Protocol, "unknown opcode %d with %d bytes", uint64(f.Opcode), total)
		}
	}
	return f, nil
}

// AppendPreamble appends the identifier that a dialler writes first. It must reach the listener in one segment.
func AppendPreamble(b []byte, id int64) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(id)) //nolint:gosec // bits as they are
}

// ParsePreamble reads the identifier of a dialler.
func ParsePreamble(b [PreambleSize]byte) int64 {
	return int64(binary.LittleEndian.Uint64(b[:])) //nolint:gosec // bits as they are
}

// GoMark follows the host name that a Go rank publishes, so that others know that it understands notices. It also
// makes the host names of a world differ, which keeps PyTorch from taking a way between its ranks that leaves others out.
const GoMark = "#cohort"

// maxNotice bounds the text of a notice.
const maxNotice = 1 << 10

// Notice is what a Go rank sends before it ends a connection: goodbye, or why it has abandoned the group.
type Notice struct {
	// Goodbye: the rank closed the group; it took part in the collectives with a tag below Tags.
	Goodbye bool
	Tags    uint32
	// Code and Rank are those of the error otherwise; the text is its detail. Rank is less than 0 for none.
	Code cohort.Code
	Rank int
	Text string
}

// Frame returns the frame of the notice. Its payload is the text, cut where it is too long.
func (n *Notice) Frame() (f Frame, text []byte) {
	text = []byte(n.Text)
	if len(text) > maxNotice {
		text = text[:maxNotice]
	}
	f = Frame{Opcode: NoticeOpcode, Length: uint64(len(text))}
	if n.Goodbye {
		f.Slot = 1 | uint64(n.Tags)<<16
	} else {
		f.Slot = uint64(n.Code)<<8 | uint64(uint32(n.Rank+1))<<16 //nolint:gosec // a rank of the group
	}
	return f, text
}

// ParseNotice reads a notice of a rank of a group of size ranks.
func ParseNotice(f Frame, text []byte, size int) Notice {
	n := Notice{Goodbye: f.Slot&0xff == 1, Text: string(text), Rank: -1}
	word := uint32(f.Slot >> 16) //nolint:gosec // the 32 bits of the field
	if n.Goodbye {
		n.Tags = word
		return n
	}
	n.Code = cohort.Code(f.Slot >> 8 & 0xff)
	if word > 0 && uint64(word) <= uint64(size) { //nolint:gosec // not negative
		n.Rank = int(word) - 1
	}
	return n
}

// SlotKind is the part of a slot that tells collectives apart.
type SlotKind uint8

// The kinds. Uneven variants share the kind of the even one.
const (
	pointToPoint SlotKind = iota
	Gather
	AllGather
	Reduce
	AllReduce
	Scatter
	Broadcast
	Barrier
	AllToAll
)

// Slot returns the slot of a collective with the given tag.
func Slot(kind SlotKind, tag uint32) uint64 { return uint64(kind)<<56 | uint64(tag)<<24 }

// TagOf returns the tag in a slot, which also selects the device: the counter of a collective, or the user's tag.
func TagOf(slot uint64) uint64 {
	if IsPointToPoint(slot) {
		return slot
	}
	return slot >> 24 & 0xffffffff
}

// IsPointToPoint reports whether a slot is that of a message, and not of a collective.
func IsPointToPoint(slot uint64) bool { return slot>>56 == uint64(pointToPoint) }
