// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativewire

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
)

// Version is the version of the wire and of the algorithms over it: which messages a collective consists of. A connection is
// refused when the versions differ.
const Version = 7

// HelloSize is the length of a hello, and of its answer.
const HelloSize = 48

// MaxLanes bounds the connections between two ranks.
const MaxLanes = 8

var helloMagic = [8]byte{'c', 'o', 'h', 'o', 'r', 't', 'n', '1'}

// Hello opens a connection: the dialing side sends it, the accepting one answers with its own.
type Hello struct {
	Version  uint32
	Group    [16]byte // drawn by rank 0 for this group; a stale or foreign address does not know it
	From, To uint32   // ranks
	Size     uint32   // ranks in the group
	Window   uint32   // bytes of unexpected messages that the sender of this hello will hold
	Lanes    uint32   // connections between two ranks that the sender of this hello asks for
}

// Put encodes h into HelloSize bytes.
func (h *Hello) Put(b []byte) {
	clear(b[:HelloSize])
	copy(b, helloMagic[:])
	binary.LittleEndian.PutUint32(b[8:], h.Version)
	copy(b[12:28], h.Group[:])
	binary.LittleEndian.PutUint32(b[28:], h.From)
	binary.LittleEndian.PutUint32(b[32:], h.To)
	binary.LittleEndian.PutUint32(b[36:], h.Size)
	binary.LittleEndian.PutUint32(b[40:], h.Window)
	binary.LittleEndian.PutUint32(b[44:], h.Lanes)
}

// ParseHello decodes a hello and checks what can be checked without knowing the group.
func ParseHello(b []byte) (Hello, error) {
	_ = b[HelloSize-1]
	if [8]byte(b[:8]) != helloMagic {
		return Hello{}, cohort.New("native: hello", cohort.Protocol, "the other side does not speak the native wire of cohort")
	}
	h := Hello{
		Version: binary.LittleEndian.Uint32(b[8:]), Group: [16]byte(b[12:28]), From: binary.LittleEndian.Uint32(b[28:]),
		To: binary.LittleEndian.Uint32(b[32:]), Size: binary.LittleEndian.Uint32(b[36:]), Window: binary.LittleEndian.Uint32(b[40:]),
		Lanes: binary.LittleEndian.Uint32(b[44:]),
	}
	if h.Version != Version {
		return h, cohort.Newf("native: hello", cohort.Protocol,
			"rank %d speaks version %d of the native wire, this rank %d; use the same release on all ranks", h.From, h.Version, Version)
	}
	if h.Size > MaxRanks || h.From >= h.Size || h.To >= h.Size {
		return h, cohort.Newf("native: hello", cohort.Protocol, "rank %d to rank %d of %d", h.From, h.To, h.Size)
	}
	if h.Lanes < 1 || h.Lanes > MaxLanes {
		return h, cohort.Newf("native: hello", cohort.Protocol, "rank %d asks for %d connections, from 1 to %d are possible",
			h.From, h.Lanes, MaxLanes)
	}
	return h, nil
}
