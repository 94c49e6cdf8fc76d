// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloowire

import "github.com/cohort-dist/cohort"

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
