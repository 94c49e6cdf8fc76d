// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"net"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// part is a piece of the queue: bytes of small, or memory that belongs to a caller.
type part struct {
	from, to int
	big      []byte
}

// queue is what waits to be written.
type queue struct {
	small        []byte
	parts        []part // empty while everything is in small
	posted       []pendingWrite
	frames       int
	singles      int   // how often in a row the flusher has found one frame
	direct       int   // frames that their callers write, whatever is under way
	large        int64 // bytes of the large frames that are not written yet, those that wait for room included
	largeWaiting int64 // bytes of those that wait for room
	writing      bool  // a goroutine writes: the caller of a frame, or the flusher
	waiting      int   // callers that wait for room
	room         chan struct{}
	spare        []byte // the buffer that is not in use
	partial      batch  // what its writer has left to the flusher: the rest of it is written first
	// A ping or pong is in the queue: another one would add nothing.
	ping, pong bool
}

func (q *queue) empty() bool { return len(q.small) == 0 && len(q.parts) == 0 && q.partial.rest == nil }

// batch is a queue that was taken to be written.
type batch struct {
	small  []byte
	parts  []part
	posted []pendingWrite
	frames int
	rest   net.Buffers // what is not written, if some of it is
}

// posting is a large frame on its way. done is nil when no caller waits for it.
type pendingWrite struct {
	done    chan error
	written func()
	size    int64
}

func (p pendingWrite) finish(err error) {
	if err == nil && p.written != nil {
		p.written()
	}
	if p.done != nil {
		p.done <- err
	}
}

// take takes what is to be written next: the rest of a batch that was begun, or everything.
func (q *queue) take() batch {
	if b := q.partial; b.rest != nil {
		q.partial = batch{}
		return b
	}
	if len(q.parts) > 0 {
		q.seal()
	}
	b := batch{small: q.small, parts: q.parts, posted: q.posted, frames: q.frames}
	q.small, q.parts, q.posted, q.spare, q.frames = q.spare[:0], nil, nil, nil, 0
	q.ping, q.pong = false, false
	if q.waiting > 0 { // the goroutine that takes the queue makes room, the flusher or a caller
		q.waiting = 0
		close(q.room)
		q.room = make(chan struct{})
	}
	return b
}

// full reports whether a caller has to wait for room.
func (q *queue) full(limits Limits) bool {
	return len(q.small) > limits.Queue || len(q.posted) >= limits.Posted
}

// seal makes the last bytes of small a part.
func (q *queue) seal() {
	from := 0
	for _, v := range slices.Backward(q.parts) {
		if v.big == nil {
			from = v.to
			break
		}
	}
	if len(q.small) > from {
		q.parts = append(q.parts, part{from: from, to: len(q.small)})
	}
}

// buffers are what is to be written of the batch.
func (b batch) buffers() net.Buffers {
	if b.rest != nil {
		return b.rest
	}
	if len(b.parts) == 0 {
		return net.Buffers{b.small}
	}
	out := make(net.Buffers, 0, len(b.parts))
	for _, p := range b.parts {
		if p.big != nil {
			out = append(out, p.big)
		} else {
			out = append(out, b.small[p.from:p.to])
		}
	}
	return out
}

// batchWritten takes note of a batch that was written.
func (q *queue) done(b batch) {
	for _, p := range b.posted {
		q.large -= p.size
	}
	if invariants.Enabled {
		invariants.Check(q.large >= 0, "cohortwire: no more bytes are written than were counted")
	}
	if q.spare == nil && cap(b.small) <= readBuffer {
		q.spare = b.small[:0]
	}
}

// add appends a frame to the queue and reports whether memory of the caller is part of it.
func (q *queue) add(f *Frame) (large bool, err error) {
	for _, s := range f.Storages {
		if s.Released() {
			return false, cohort.New("cohort transport: send", cohort.InvalidArgument, "the memory of a tensor was released")
		}
	}
	q.small = f.AppendHead(q.small)
	q.frames++
	put := func(b []byte) {
		if len(b) <= inline {
			q.small = append(q.small, b...)
			return
		}
		q.seal()
		q.parts = append(q.parts, part{big: b})
		large = true
	}
	put(f.Prefix)
	put(f.Payload)
	for _, s := range f.Storages {
		b, err := s.Bytes()
		if err != nil { // released between the check and here: the frame must stay whole
			b = make([]byte, s.Len())
		}
		put(b)
	}
	return large, nil
}

// writesDirectly reports whether the goroutine that has added a frame also writes it.
func (q *queue) writesDirectly(load int64) bool {
	if load <= maxDirectInFlight {
		return true
	}
	if q.direct > 0 {
		q.direct--
		return true
	}
	return false
}

// noteFlush notes how many frames the flusher has found at once.
func (q *queue) noteFlush(frames int) {
	if frames > 1 {
		q.singles = 0
		return
	}
	if q.singles++; q.singles >= maxSingles {
		q.singles, q.direct = 0, directFrames
	}
}
