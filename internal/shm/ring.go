// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"sync/atomic"
	"unsafe"
)

// ringControl is the shared part of a ring from one rank to another. Each side writes its own cache line.
type ringControl struct {
	head uint64 // bytes written, by the sender
	_    [2*lineSize - 8]byte
	tail uint64 // bytes consumed, by the receiver
	full uint32 // set by a sender that waits for room
	_    [2*lineSize - 12]byte
}

const ringControlSize = int(unsafe.Sizeof(ringControl{}))

// frame is the header of a message or a part of one; the payload follows. Frames are multiples of frameUnit and never
// wrap around the end of the ring.
type frame struct {
	kind  uint32
	size  uint32 // payload bytes in this frame
	slot  uint64
	id    uint64 // of the message, counted by its sender
	total uint64 // bytes of the whole message
}

const frameUnit = int(unsafe.Sizeof(frame{})) // 32

const (
	frameSkip   = iota // fills the end of the ring
	frameEager         // a whole message
	frameOffer         // a large message is ready: slot, id, total
	frameGrant         // answer to an offer: send it
	frameRefuse        // answer to an offer: no room for it; total is the room
	frameData          // a part of a granted message; total is lastPart in the last one
)

const lastPart = 1

// ring is one side's view of a ring. Its positions are private copies, so that a broken peer cannot move them.
type ring struct {
	control *ringControl
	data    []byte // a power of two
	pos     uint64 // what this side has written or consumed
	other   uint64 // the other side's position when last read
}

// room is the bytes that can be written now.
func (r *ring) room(need int) int {
	if n := len(r.data) - int(r.pos-r.other); n >= need { //nolint:gosec // at most the ring
		return n
	}
	t := atomic.LoadUint64(&r.control.tail)
	if t-r.other <= r.pos-r.other { // consumed no more than was written
		r.other = t
	}
	return len(r.data) - int(r.pos-r.other) //nolint:gosec // at most the ring
}

func frameSpace(payload int) int { return frameUnit + roundUp(payload, frameUnit) }

// put writes a frame and reports whether there was room for it. The receiver sees it after publish.
func (r *ring) put(f frame, payload []byte) bool {
	f.size = uint32(len(payload)) //nolint:gosec // far smaller
	need := frameSpace(len(payload))
	at := int(r.pos & uint64(len(r.data)-1)) //nolint:gosec // below the length
	if left := len(r.data) - at; left < need {
		if r.room(left+need) < left+need {
			return false
		}
		*(*frame)(unsafe.Pointer(&r.data[at])) = frame{kind: frameSkip, size: uint32(left - frameUnit)} //nolint:gosec // below the length
		r.pos += uint64(left)                                                                           //nolint:gosec // positive
		at = 0
	} else if r.room(need) < need {
		return false
	}
	*(*frame)(unsafe.Pointer(&r.data[at])) = f //nolint:gosec // a place in the mapped segment
	copy(r.data[at+frameUnit:], payload)
	r.pos += uint64(need) //nolint:gosec // positive
	return true
}

func (r *ring) publish() { atomic.StoreUint64(&r.control.head, r.pos) }

// peek returns the next frame and its payload, which stay valid until consume. ok is false when there is none; broken
// when the ring holds what no sender of ours writes.
func (r *ring) peek() (f frame, payload []byte, ok, broken bool) {
	for {
		if r.pos == r.other {
			r.other = atomic.LoadUint64(&r.control.head)
			if r.pos == r.other {
				return f, nil, false, false
			}
		}
		if r.other-r.pos > uint64(len(r.data)) || (r.other-r.pos)%uint64(frameUnit) != 0 {
			return f, nil, false, true
		}
		at := int(r.pos & uint64(len(r.data)-1))                                                //nolint:gosec // below the length
		f = *(*frame)(unsafe.Pointer(&r.data[at]))                                              //nolint:gosec // a place in the mapped segment
		need := uint64(frameSpace(int(f.size)))                                                 //nolint:gosec // a size
		if f.size > uint32(len(r.data)) || need > r.other-r.pos || at+int(need) > len(r.data) { //nolint:gosec // lengths
			return f, nil, false, true
		}
		if f.kind != frameSkip {
			return f, r.data[at+frameUnit : at+frameUnit+int(f.size)], true, false
		}
		r.consume(f)
	}
}

// consume frees the frame that peek returned. The sender sees it after release.
func (r *ring) consume(f frame) { r.pos += uint64(frameSpace(int(f.size))) } //nolint:gosec // a size

// release shows the sender what was consumed and reports whether it waits for room.
func (r *ring) release() (wanted bool) {
	atomic.StoreUint64(&r.control.tail, r.pos)
	return atomic.LoadUint32(&r.control.full) != 0 && atomic.SwapUint32(&r.control.full, 0) != 0
}
