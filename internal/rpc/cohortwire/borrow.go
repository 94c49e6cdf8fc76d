// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// A caller that waits for its answer is woken by the goroutine that reads, and the runtime wakes a thread for that. When
// calls follow one another without anything beside them, the reading goroutine therefore offers its reader: it does not
// go on after an answer, and the next caller reads its own. The caller reads nothing else except what Config.MayPassOn names:
// whatever it finds that is not its answer, whole and small, stays in the buffer, and the reading goroutine goes on from
// there. It also goes on when the link was idle, or a caller has waited, for a moment.

const (
	// offerAfter is the number of calls without anything beside them after which the reader is offered.
	offerAfter = 16
	// borrowTick is how long the reader stays offered or borrowed before the reading goroutine goes on; it may be found up to as
	// much later.
	borrowTick = time.Millisecond
	// maxBorrowedAnswer is the size of the answers that callers read.
	maxBorrowedAnswer = 16 << 10
)

// Who reads.
const (
	readerOwned    int32 = iota // the reading goroutine
	readerOffered               // no goroutine: the next caller may
	readerBorrowed              // a caller
)

// borrowing says which goroutine reads a link. The reader, the streak and the fields below belong to that goroutine.
type borrowing struct {
	state    atomic.Int32  // changes with mu held
	returned chan struct{} // wakes the reading goroutine, which checks state
	before   int           // the streak up to the frame before this one
	streak   int           // answers that were the only thing under way
	guard    *time.Timer

	mu struct {
		sync.Mutex
		changes uint64
		seen    uint64 // changes at the guard's last check
		hurried bool   // the guard has set a deadline in the past, so that the caller stops
		armed   bool
	}
}

// Answered says that an answer is about to reach a caller that waits for it and has called [Link.Await]: if calls have come
// alone for a while, the next one may read its answer itself. It is for OnFrame, before the caller is woken, and the last
// thing that this OnFrame does with the link: a turn that has offered the reader is never handed over (see [Link.Handover]).
func (l *Link) Answered(f *Frame) {
	d := &l.borrow
	if !f.BufferEmpty || l.raw == nil || l.inFlight.Load() != 0 || int64(len(f.Payload))+f.bytes() > maxBorrowedAnswer {
		return
	}
	turn := l.turns.now.Load()
	if invariants.Enabled {
		invariants.Check(f.isAnswer(), "cohortwire: only an answer offers the reader")
		invariants.Check(turn%2 == 1, "cohortwire: the reader is offered inside an OnFrame")
		invariants.Check(d.state.Load() == readerOwned, "cohortwire: the reading goroutine offers what it owns")
	}
	if d.streak = d.before + 1; d.streak < offerAfter {
		return
	}
	l.uncork()
	l.turns.offered.Store(turn) // before another goroutine may read
	l.offerReader(readerOwned)
}

// offerReader lets the next caller read, unless something is under way already.
func (l *Link) offerReader(from int32) {
	d := &l.borrow
	failpoint.At("cohortwire.link.offer")
	d.mu.Lock()
	if d.state.Load() != from {
		d.mu.Unlock()
		return
	}
	d.change(readerOffered)
	l.clearGuardDeadline()
	if !d.mu.armed {
		d.mu.armed, d.mu.seen = true, d.mu.changes
		d.guard.Reset(borrowTick)
	}
	d.mu.Unlock()
	if l.inFlight.Load() != 0 || l.alive() != nil { // a request that is sent after this check sees that the reader is offered
		l.ReclaimReader()
	}
}

// ReclaimReader lets the reading goroutine go on, if the reader is offered: a goroutine waits for what will arrive and does not read it.
func (l *Link) ReclaimReader() {
	d := &l.borrow
	if d.state.Load() != readerOffered {
		return
	}
	failpoint.At("cohortwire.link.reclaim")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Load() == readerOffered {
		l.returnReader()
	}
}

// returnReader makes the reading goroutine go on. It is called with mu held.
func (l *Link) returnReader() {
	l.clearGuardDeadline()
	l.borrow.before, l.borrow.streak = 0, 0
	l.borrow.change(readerOwned)
	select {
	case l.borrow.returned <- struct{}{}:
	default:
	}
}

// clearGuardDeadline removes the deadline that the guard has set. It is called with mu held.
func (l *Link) clearGuardDeadline() {
	if l.borrow.mu.hurried {
		l.borrow.mu.hurried = false
		_ = l.conn.SetReadDeadline(time.Time{}) // fails only when closed
	}
}

func (d *borrowing) change(state int32) {
	d.mu.changes++
	d.state.Store(state)
}

// waitForReader waits until the reading goroutine reads itself.
func (l *Link) waitForReader() {
	for l.borrow.state.Load() != readerOwned {
		failpoint.At("cohortwire.link.wait_reader")
		<-l.borrow.returned
	}
}

// Await reads the answer to the request with this id, which was sent, in the caller's goroutine. It returns nil when the
// reader is not offered or something else happened: then OnFrame gets the answer, if one arrives. It waits for a moment only,
// so it needs no context.
func (l *Link) Await(id uint64) *Frame {
	d := &l.borrow
	if d.state.Load() != readerOffered {
		return nil
	}
	failpoint.At("cohortwire.link.await")
	d.mu.Lock()
	if d.state.Load() != readerOffered {
		d.mu.Unlock()
		return nil
	}
	d.change(readerBorrowed)
	d.mu.Unlock()
	f := l.reader.answer(id)
	if f != nil {
		l.inFlight.Add(-1)
		for l.reader.whole() && l.reader.passOn() { // what arrived with it
		}
	}
	if f == nil || l.reader.r != l.reader.w {
		failpoint.At("cohortwire.link.return")
		d.mu.Lock()
		l.returnReader()
		d.mu.Unlock()
		return f
	}
	l.offerReader(readerBorrowed)
	return f
}

// mayPassOn reports whether a frame of this type may be passed on by a caller.
func (l *Link) mayPassOn(t Type) bool { return l.cfg.MayPassOn != nil && l.cfg.MayPassOn(t) }

// answer reads the answer to a request if it is the next frame, and small. What may be passed on may precede it.
func (r *frameReader) answer(id uint64) *Frame {
	for {
		for !r.whole() {
			if r.r < r.w && !r.fits() {
				return nil
			}
			if err := r.fill(); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) { // else it is the guard's
					r.failed = err
				}
				return nil
			}
		}
		b := r.buf[r.r:]
		if !Type(binary.LittleEndian.Uint16(b[4:])).IsResponse() || binary.LittleEndian.Uint64(b[8:]) != id {
			if !r.passOn() {
				return nil
			}
			continue
		}
		return r.present()
	}
}

// passOn passes the next frame, which is whole, to OnFrame if that deals with it at once. It reports whether it did.
func (r *frameReader) passOn() bool {
	if !r.link.mayPassOn(Type(binary.LittleEndian.Uint16(r.buf[r.r+4:]))) {
		return false
	}
	f := r.present()
	if f == nil {
		return false
	}
	if f.isAnswer() {
		r.link.inFlight.Add(-1)
	}
	r.link.cfg.OnFrame(r.link, f)
	return true
}

// present returns the next frame, which is whole, or nil when it is not understood.
func (r *frameReader) present() *Frame {
	f, err := r.next()
	if err != nil { // nothing behind it can be understood
		r.r, r.w, r.failed = 0, 0, err
		return nil
	}
	return f
}

// fits reports whether the next frame, as far as it is known, is one that a caller reads.
func (r *frameReader) fits() bool {
	b := r.buf[r.r:r.w]
	if len(b) < HeaderSize {
		return true
	}
	return binary.LittleEndian.Uint32(b) <= maxBorrowedAnswer && binary.LittleEndian.Uint64(b[40:]) <= maxBorrowedAnswer
}

// checkBorrow is the guard: it returns the reader to the reading goroutine when nothing has happened since its last check.
func (l *Link) checkBorrow() {
	d := &l.borrow
	failpoint.At("cohortwire.link.guard")
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state := d.state.Load(); {
	case state == readerOwned:
		d.mu.armed = false
		return
	case state == readerOffered && d.mu.changes == d.mu.seen:
		d.mu.armed = false
		l.returnReader()
		return
	case d.mu.changes != d.mu.seen:
		d.mu.seen = d.mu.changes
	case !d.mu.hurried:
		d.mu.hurried = true
		_ = l.conn.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
	}
	d.guard.Reset(borrowTick)
}
