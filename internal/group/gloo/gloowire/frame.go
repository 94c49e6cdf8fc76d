// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

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
