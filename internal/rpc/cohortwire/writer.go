// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"context"
	"math"
	"net"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// inline is the size up to which payloads and storages are copied to stand beside their neighbours. Above it the copy
// costs more than a second piece in the same write.
const inline = 16 << 10

// writeChunk is how much is handed to the kernel between two checks of the clock; stall how long one may take.
const (
	writeChunk = 4 << 20
	stall      = time.Minute
)

// postedBytes is how much may wait to be written before [Link.Post] waits too.
const postedBytes = 64 << 20

// maxDirectInFlight is the number of calls under way up to which a caller writes its own frame. Above it a write of many
// frames is worth the hand-off, unless the flusher finds one frame maxSingles in a row: calls that wait for each other are
// under way together and still write one after the other. Then the next directFrames are written by their callers, as long as
// these do not meet.
const (
	maxDirectInFlight = 2
	maxSingles        = 4
	directFrames      = 1024
)

// Send writes a frame. A small one is copied, so it may be reused at once; one with a payload or storage over 16 KiB
// belongs to the link until Send returns. When ctx ends during the write of such a frame, Send returns and the frame is
// still written: its memory then belongs to the link until the link is closed.
func (l *Link) Send(ctx context.Context, f *Frame) error {
	if err := l.Request(ctx, f); err != nil {
		return err
	}
	l.ReclaimReader() // a goroutine may wait for what it causes
	return nil
}

// Request is Send for a request whose caller reads the answer itself where it may: it calls [Link.Await] at once, or
// [Link.ReclaimReader] if the answer must not be delayed.
func (l *Link) Request(ctx context.Context, f *Frame) error {
	return l.send(ctx, f, math.MinInt64, false)
}

// Post is Send for an answer. It does not wait for the write of a large frame, unless more than postedBytes wait already:
// the memory belongs to the link until it has been written, at some time. A peer that does not read what it has asked for
// gets errors instead: where [Limits].Waiting bytes wait already, Post refuses a large frame at once.
func (l *Link) Post(ctx context.Context, f *Frame) error {
	if err := l.send(ctx, f, postedBytes, false); err != nil {
		return err
	}
	l.ReclaimReader()
	return nil
}

// PostDelayed is Post for an answer that can be delayed: a small frame is written with the next one that is sent, or when the caller or
// another goroutine calls [Link.FlushNow].
func (l *Link) PostDelayed(ctx context.Context, f *Frame) error {
	return l.send(ctx, f, postedBytes, true)
}

// maxDelayedBytes is how many bytes may be delayed.
const maxDelayedBytes = 16 << 10

// FlushNow writes what waits to be written, unless another goroutine is writing.
func (l *Link) FlushNow() {
	failpoint.At("cohortwire.link.flush_now")
	l.out.Lock()
	if l.out.writing || l.out.empty() {
		l.out.Unlock()
		return
	}
	l.out.writing = true
	l.writeOrWake(true)
}

// bulk is how many bytes of a frame are written from the caller's memory.
func (f *Frame) bulk() (n int64) {
	for _, b := range [...][]byte{f.Prefix, f.Payload} {
		if len(b) > inline {
			n += int64(len(b))
		}
	}
	for _, s := range f.Storages {
		if s.Len() > inline {
			n += int64(s.Len())
		}
	}
	return n
}

// send is Send, and does not wait while at most ahead bytes of large frames do. late says that the write of a small frame may be delayed.
func (l *Link) send(ctx context.Context, f *Frame, ahead int64, late bool) error {
	f.Incarnation = l.cfg.Identity.Incarnation
	if err := f.check(l.cfg.Limits); err != nil {
		return err
	}
	size := f.bulk()
	failpoint.At("cohortwire.link.send")
	l.out.Lock()
	if before := l.out.large; ahead >= 0 && size > 0 && before > 0 && before+size > l.cfg.Limits.Waiting {
		l.out.Unlock()
		e := cohort.Newf("cohort transport: send", cohort.Exhausted,
			"%d bytes wait for the peer to read them; %d more are over the limit of %d", before, size, l.cfg.Limits.Waiting)
		e.Peer = l.peer.Name
		return e
	}
	wait := size > 0 && l.out.large > ahead
	l.out.large += size
	l.out.largeWaiting += size
	err := l.waitForRoom(ctx)
	l.out.largeWaiting -= size
	var large bool
	if err == nil {
		large, err = l.out.add(f)
	}
	if err != nil {
		l.out.large -= size
		l.out.Unlock()
		return err
	}
	if f.isRequest() { // it is in the queue and will be answered, also when its sender does not wait to the end of the write
		l.inFlight.Add(1)
	} else if f.isAnswer() {
		l.inFlight.Add(-1)
	}
	var done chan error
	if large {
		if wait {
			done = make(chan error, 1)
		}
		l.out.posted = append(l.out.posted, pendingWrite{done, f.Written, size})
	}
	switch {
	case l.out.writing:
		l.out.direct = 0
		l.out.Unlock()
	case !large && ahead >= 0 && l.corked.Load():
		l.out.Unlock()
	case !large && late && len(l.out.small) < maxDelayedBytes:
		l.out.Unlock()
	default:
		l.out.writing = true
		l.writeOrWake(l.out.writesDirectly(l.inFlight.Load()))
	}
	if !large && f.Written != nil { // it was copied
		f.Written()
	}
	if done == nil {
		return l.alive()
	}
	failpoint.At("cohortwire.link.written")
	select {
	case err := <-done:
		return err
	case <-l.closed:
		return l.Err()
	case <-ctx.Done():
		return cohort.FromContext(ctx, "cohort transport: send")
	}
}

// waitForRoom is called with out locked and returns with it locked.
func (l *Link) waitForRoom(ctx context.Context) error {
	for l.out.full(l.cfg.Limits) {
		l.out.waiting++
		room := l.out.room
		l.out.Unlock()
		failpoint.At("cohortwire.link.room")
		l.uncork()
		l.FlushNow()
		var err error
		select {
		case <-room:
		case <-l.closed:
			err = l.Err()
		case <-ctx.Done():
			err = cohort.FromContext(ctx, "cohort transport: send")
		}
		failpoint.At("cohortwire.link.room.over")
		l.out.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) alive() error {
	select {
	case <-l.closed:
		return l.Err()
	default:
		return nil
	}
}

// control queues a frame of the transport itself. It never waits: there is at most one of each kind in the queue.
func (l *Link) control(f *Frame) {
	failpoint.At("cohortwire.link.control")
	l.out.Lock()
	sign := &l.out.pong
	if f.Type == pingFrame {
		sign = &l.out.ping
	}
	if f.Type != goodbyeFrame {
		if *sign { // a peer that sends pings and does not read gets one pong
			l.out.Unlock()
			return
		}
		*sign = true
	}
	_, _ = l.out.add(f)
	if l.out.writing {
		l.out.Unlock()
		return
	}
	l.out.writing = true
	l.writeOrWake(true)
}

// writeOrWake is called with out locked and the right to write. If asked to, it writes here what the kernel takes without waiting;
// everything else is left to the flusher. It unlocks out.
func (l *Link) writeOrWake(here bool) {
	if !here || l.raw == nil {
		l.out.Unlock()
		l.wake()
		return
	}
	b := l.out.take()
	l.out.Unlock()
	l.writeHere(&b)
	if b.rest == nil {
		for _, p := range b.posted {
			p.finish(nil)
		}
	}
	failpoint.At("cohortwire.link.drive")
	l.out.Lock()
	if b.rest != nil {
		l.out.partial = b
	} else {
		l.out.done(b)
	}
	if l.out.empty() {
		l.out.writing = false
		l.out.Unlock()
		return
	}
	l.out.Unlock()
	l.wake()
}

// writeHere writes of a batch what the kernel takes without waiting, up to writeChunk: then it is the flusher's.
func (l *Link) writeHere(b *batch) {
	if len(b.parts) == 0 {
		if n := l.tryWrite(b.small); n < len(b.small) {
			b.rest = net.Buffers{b.small[n:]}
		}
		return
	}
	bufs := b.buffers()
	for total := 0; len(bufs) > 0; bufs = bufs[1:] {
		n := l.tryWrite(bufs[0][:min(len(bufs[0]), writeChunk-total)])
		if total += n; n < len(bufs[0]) {
			bufs[0] = bufs[0][n:]
			b.rest = bufs
			return
		}
	}
}

func (l *Link) wake() {
	failpoint.At("cohortwire.link.wake")
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// tryWrite writes what the kernel takes without waiting. The flusher, which gets the rest, sees an error.
func (l *Link) tryWrite(b []byte) int {
	l.try.b, l.try.n = b, 0
	failpoint.At("cohortwire.link.try")
	_ = l.raw.Write(l.try.fn)
	l.try.b = nil
	return l.try.n
}

// writeNow is what tryWrite does with the socket.
func (l *Link) writeNow(fd uintptr) bool {
	for l.try.n < len(l.try.b) {
		m, err := rawWrite(fd, l.try.b[l.try.n:])
		if err == syscall.EINTR { //nolint:errorlint // a number of the system
			continue
		}
		if err != nil || m <= 0 {
			break
		}
		l.try.n += m
	}
	return true
}

// flush is the goroutine that writes what callers did not.
func (l *Link) flush() {
	for {
		failpoint.At("cohortwire.link.flush")
		select {
		case <-l.kick:
		case <-l.closed:
			failpoint.At("cohortwire.link.flush.end")
			l.out.Lock()
			posted := slices.Concat(l.out.partial.posted, l.out.posted)
			l.out.posted = nil
			l.out.Unlock()
			for _, p := range posted {
				p.finish(l.Err())
			}
			return
		}
		for {
			if l.inFlight.Load() > maxDirectInFlight {
				runtime.Gosched() // let runnable goroutines add their frames to this write
			}
			failpoint.At("cohortwire.link.flush.take")
			l.out.Lock()
			if l.out.empty() {
				if invariants.Enabled {
					select {
					case <-l.closed: // what could not be written still counts
					default:
						invariants.Check(l.out.large == l.out.largeWaiting, "cohortwire: all bytes that were counted are written")
					}
				}
				l.out.writing = false
				l.out.Unlock()
				break
			}
			b := l.out.take()
			l.out.noteFlush(b.frames)
			l.out.Unlock()
			failpoint.At("cohortwire.link.write")
			err := l.write(b.buffers())
			if err != nil {
				err = l.lost(err)
				l.fail(err)
			}
			for _, p := range b.posted {
				p.finish(err)
			}
			if err != nil {
				break
			}
			failpoint.At("cohortwire.link.flushed")
			l.out.Lock()
			l.out.done(b)
			l.out.Unlock()
		}
	}
}

// write writes buffers, giving up when the peer reads nothing for the stall limit.
func (l *Link) write(bufs net.Buffers) error {
	for len(bufs) > 0 {
		if err := l.conn.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return err
		}
		var now net.Buffers
		total := 0
		for len(bufs) > 0 && total < writeChunk {
			b := bufs[0]
			if n := writeChunk - total; len(b) > n {
				now = append(now, b[:n])
				bufs[0] = b[n:]
				break
			}
			now = append(now, b)
			total += len(b)
			bufs = bufs[1:]
		}
		if _, err := now.WriteTo(l.conn); err != nil {
			return err
		}
	}
	return l.conn.SetWriteDeadline(time.Time{})
}
