// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/storecore"
)

// loop serves connections from one goroutine: it waits for whatever socket is ready, reads what is there, lets the machine
// apply all whole requests, and writes the replies. A request then costs one read and one write; with a goroutine for each
// connection it would also cost two hand-offs between threads.
//
// Each connection gets at most one buffer of work per turn, so that none can keep the others waiting.
//
// The machine is used in steps, between enter and leave. What a loop knows of a connection outside of them is its own and
// cannot be outdated in the wrong direction: only a step of its own loop makes a connection wait that did not.
type loop struct {
	*loops

	number int
	bit    uint64 // 1 << number
	poll   int    // epoll descriptor
	accept int    // listener, -1 once closed
	waker  int    // eventfd

	conns    []*loopConn // by descriptor
	serial   int32
	buf      []byte
	events   []unix.EpollEvent
	stuck    map[*loopConn]struct{} // those whose output does not fit into their socket
	now      int64
	checkAt  int64 // when to look at stuck connections next
	acceptAt int64 // when to accept again after the process ran out of descriptors; 0: accepting
	starved  bool  // the last attempt to accept failed
	served   int   // sockets that were ready last
	ticked   bool  // the machine knows that this turn has begun
	owes     int   // turns until all sockets were looked at for those who arrive; 0: nobody does
	todo     []errand
	pieces   [][]byte // what is to be written for errands
	vector   []unix.Iovec
	sent     []sent      // what went out since the last step
	dropped  []*loopConn // who was closed since the last step
	accepted []*loopConn
	meter    *meter
}

// loopConn is a connection. An event names its serial as well as its descriptor, so that one that was closed and whose
// descriptor is used again is not taken for the new one. All of it but state belongs to its loop.
type loopConn struct {
	state   *storecore.Conn
	peer    string
	fd      int32
	serial  int32  // 0: it is not served yet
	wants   uint32 // the events that epoll is asked for
	paused  bool   // it is not read from
	granted bool   // it has room for its request
	have    []byte // the part of a large request that is here
	size    int    // of the buffer in which that goes on; 0: it is read as usual
	blocked bool   // its output does not fit into the socket
	closed  bool
	failed  error // why it cannot be served
	movedAt int64 // when output last went out
}

// errand is what a step found to be done for a connection.
type errand struct {
	conn     *loopConn
	from, to int // its part of the loop's pieces
	owed     int // bytes, also those that are not among the pieces
	cut      bool
}

// sent is what went out.
type sent struct {
	conn  *loopConn
	bytes int
}

const (
	loopReadSize    = 64 << 10
	loopReadMost    = 256 << 10 // at most so much of a large request per turn
	loopWriteSize   = 256 << 10 // at most so much of one reply per turn
	loopEvents      = 256
	acceptsPerTurn  = 128
	nodelayKeepIdle = 60 // seconds of silence before a client's host is asked whether it is still there
)

func newLoop(d *loops, number int, listener *net.TCPListener) (*loop, error) {
	l := &loop{
		loops: d, number: number, bit: 1 << number, poll: -1, accept: -1, waker: -1,
		buf: make([]byte, loopReadSize), events: make([]unix.EpollEvent, loopEvents), stuck: map[*loopConn]struct{}{},
	}
	if err := l.setUp(listener); err != nil {
		l.closeFDs()
		return nil, err
	}
	return l, nil
}

func (l *loop) closeFDs() {
	for _, fd := range []*int{&l.accept, &l.poll, &l.waker} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// run is the loop's goroutine.
func (l *loop) run() {
	defer l.joined.Done()
	for {
		// Under load something is always ready; then the kernel is asked without telling the scheduler, which costs as much as
		// the call itself.
		n := pollNow(l.poll, l.events)
		if n == 0 && l.patient() {
			yieldNow()
			n = pollNow(l.poll, l.events)
		}
		l.served = n
		timeout, goOn := l.begin(n)
		if !goOn {
			l.finish()
			return
		}
		if timeout != awake {
			n = l.sleep(timeout)
			l.served = n
		}
		for i := range n {
			l.dispatch(&l.events[i])
		}
		if l.acceptAt != 0 && l.now >= l.acceptAt {
			l.acceptAgain()
		}
	}
}

// patient reports whether a loop that finds nothing ready lets others have its core before it looks again and sleeps. Clients
// that were just served want to run and will send more. One loop rarely runs dry under load; several do all the time, since
// each has fewer clients, and to fall asleep and be woken costs more than a request.
func (l *loop) patient() bool { return l.served > 1 && len(l.all) > 1 }

// awake says that a loop has something to do.
const awake = time.Duration(-2)

// begin begins a turn in which n sockets are ready. It does what is owed to whomever. If there is nothing to do it returns for
// how long the loop may sleep, negative for ever, and else awake; false when the loop is to end.
func (l *loop) begin(n int) (timeout time.Duration, goOn bool) {
	l.now, l.ticked = l.core.clock.now(), false
	l.enter()
	m := l.core.Machine
	if m.Busy() {
		m.Resume()
	}
	if m.Crowded() {
		m.Admit()
	}
	l.expireLocked(l.now)
	l.checkStuckLocked()
	l.payLocked(n)
	stop := l.mu.stop
	deaf := l.mu.draining && l.accept >= 0
	timeout = awake
	if n == 0 && !stop && !deaf && !m.Busy() && l.owes == 0 && (m.Mail()|l.mu.arrivals.owed)&l.bit == 0 {
		timeout = l.timeoutLocked()
		l.mu.asleep |= l.bit
	}
	l.leave()
	if deaf && !stop {
		l.stopAccepting()
	}
	return timeout, !stop
}

// owedTurns is how many turns a loop owes to those who arrive: one that finds what was sent before, one that finds the end of
// the connection behind it, and one that tells the machine.
const owedTurns = 3

// payLocked counts the turns until all sockets were looked at for those who arrive, from the one in which it is known that
// this is owed; more where more sockets are ready than a turn looks at.
func (l *loop) payLocked(n int) {
	switch {
	case l.mu.arrivals.owed&l.bit == 0:
		return
	case l.owes == 0:
		l.owes = owedTurns + len(l.conns)/loopEvents
		return
	case n < loopEvents:
		l.owes = min(l.owes, owedTurns)
	}
	// What this turn has found ready is looked at before the next one begins.
	if l.owes--; l.owes == 0 {
		l.lookedLocked(l.bit)
	}
}

// timeoutLocked is for how long a loop may sleep that nobody wakes; negative is for ever.
func (l *loop) timeoutLocked() time.Duration {
	timeout := time.Duration(-1)
	for _, until := range []struct {
		when bool
		then time.Duration
	}{
		{l.core.Machine.Halves(), halfCheck},
		{len(l.stuck) > 0, time.Duration(l.stallCheck())},
		{l.core.Machine.Crowded() || l.acceptAt != 0, retryPause},
	} {
		if until.when && (timeout < 0 || until.then < timeout) {
			timeout = until.then
		}
	}
	return timeout
}

// sleep waits for events and returns their number.
func (l *loop) sleep(timeout time.Duration) int {
	moment.At("storeserve.wait")
	milliseconds := -1
	if timeout >= 0 {
		milliseconds = int(timeout/time.Millisecond) + 1
	}
	l.meter.sleep()
	n, err := unix.EpollWait(l.poll, l.events, milliseconds)
	l.meter.rise()
	l.now, l.ticked = l.core.clock.now(), false
	if err != nil {
		return 0 // EINTR
	}
	return n
}

// enter begins a step: it takes the lock, and tells the machine what this loop has done since its last one.
func (l *loop) enter() {
	moment.At("storeserve.lock")
	l.mu.Lock()
	l.meter.lock()
	l.mu.asleep &^= l.bit
	if !l.ticked {
		l.ticked = true
		l.core.tickAt(l.now)
	}
	for _, s := range l.sent {
		l.core.Machine.Sent(s.conn.state, s.bytes)
	}
	l.sent = l.sent[:0]
	for i, c := range l.dropped {
		l.droppedLocked(c)
		l.dropped[i] = nil
	}
	l.dropped = l.dropped[:0]
}

// leave ends a step: it takes along what is to be done for connections of this loop, releases the lock, wakes other loops that
// have something to do for theirs, and does it.
func (l *loop) leave() {
	m := l.core.Machine
	for _, state := range m.DirtyAt(l.number) {
		c := state.Owner.(*loopConn) //nolint:errcheck // all of them are
		if c.closed {
			continue
		}
		c.paused, c.granted = state.Paused(), state.Granted()
		from := len(l.pieces)
		l.pieces = state.Pending(l.pieces, loopWriteSize)
		l.todo = append(l.todo, errand{c, from, len(l.pieces), state.Owed(), state.Cut() != nil})
		if state.Cut() != nil {
			l.core.cut(state)
		}
	}
	if scarce := m.Scarce(); scarce != l.scarce.Load() {
		l.scarce.Store(scarce)
	}
	who := l.toWakeLocked() &^ l.bit
	events, ticket := l.takeEventsLocked()
	l.meter.unlock()
	l.mu.Unlock()
	if who != 0 {
		l.wake(who)
	}
	l.emit(events, ticket)
	for i := range l.todo {
		l.perform(&l.todo[i])
		l.todo[i] = errand{}
	}
	l.todo = l.todo[:0]
	clear(l.pieces)
	l.pieces = l.pieces[:0]
}

// dispatch handles one event.
func (l *loop) dispatch(ev *unix.EpollEvent) {
	switch int(ev.Fd) {
	case l.waker:
		var count [8]byte
		_, _ = unix.Read(l.waker, count[:])
		l.enter()
		l.leave()
		return
	case l.accept:
		l.acceptSome(acceptsPerTurn)
		return
	}
	if int(ev.Fd) >= len(l.conns) {
		return
	}
	c := l.conns[ev.Fd]
	if c == nil || c.serial != ev.Pad {
		return // closed earlier in this turn
	}
	if ev.Events&unix.EPOLLOUT != 0 && c.blocked {
		c.blocked = false
		l.enter()
		l.core.Machine.Touch(c.state)
		l.leave()
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 && !c.closed {
		l.read(c, ev.Events)
	}
}

// perform does an errand: it writes a client's output, one piece a turn, and arranges for the rest. What it makes room for is
// applied with the next step: a client that reads fast does not keep others waiting. It is one function because the kernel's own
// calls push out what the processor knows of the callers, so that each return after a system call is one that it mispredicts.
func (l *loop) perform(e *errand) {
	c := e.conn
	switch {
	case c.closed:
		return
	case e.cut:
		l.drop(c)
		return
	case c.serial == 0 && !l.join(c):
		return
	case c.blocked: // it is not ready: epoll will tell
		return
	}
	if e.from < e.to {
		moment.At("storeserve.write")
		var n int
		var errno unix.Errno
		if e.to-e.from == 1 {
			n, errno = writeNow(int(c.fd), l.pieces[e.from])
		} else {
			n, errno = l.writePieces(c, l.pieces[e.from:e.to])
		}
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
			l.drop(c)
			return
		}
		if n > 0 {
			c.movedAt = l.now
			l.sent = append(l.sent, sent{c, n})
		}
		c.blocked = n < e.owed
	}
	l.arm(c)
}

// writePieces writes several pieces once.
func (l *loop) writePieces(c *loopConn, pieces [][]byte) (int, unix.Errno) {
	for _, p := range pieces {
		l.vector = append(l.vector, unix.Iovec{Base: &p[0]})
		l.vector[len(l.vector)-1].SetLen(len(p))
	}
	n, errno := writevNow(int(c.fd), l.vector)
	clear(l.vector)
	l.vector = l.vector[:0]
	return n, errno
}

// arm asks epoll for what the connection needs next.
func (l *loop) arm(c *loopConn) {
	wants := uint32(unix.EPOLLIN)
	if c.paused {
		wants = 0
	}
	if c.blocked {
		wants |= unix.EPOLLOUT
	}
	if wants == c.wants {
		return
	}
	if had, has := c.wants&unix.EPOLLOUT, wants&unix.EPOLLOUT; has != had {
		if has != 0 {
			c.movedAt = l.now
			if len(l.stuck) == 0 {
				l.checkAt = l.now + l.stallCheck()
			}
			l.stuck[c] = struct{}{}
		} else {
			delete(l.stuck, c)
		}
	}
	c.wants = wants
	ev := unix.EpollEvent{Events: wants, Fd: c.fd, Pad: c.serial}
	if err := unix.EpollCtl(l.poll, unix.EPOLL_CTL_MOD, int(c.fd), &ev); err != nil {
		l.drop(c)
	}
}

// stallCheck is how often to look at clients that do not read, in nanoseconds.
func (l *loop) stallCheck() int64 { return int64(min(time.Second, l.core.config.Stall/4)) }

// checkStuckLocked cuts clients that have not read anything for too long.
func (l *loop) checkStuckLocked() {
	if len(l.stuck) == 0 || l.now < l.checkAt {
		return
	}
	l.checkAt = l.now + l.stallCheck()
	for c := range l.stuck {
		if l.now-c.movedAt > int64(l.core.config.Stall) {
			l.core.Machine.Refuse(c.state, stalled(l.core.config.Stall, c.state.Owed()))
		}
	}
}

// drop closes a connection. The machine forgets it with the next step.
func (l *loop) drop(c *loopConn) {
	if c.closed {
		return
	}
	c.closed = true
	moment.At("storeserve.drop")
	delete(l.stuck, c)
	if c.serial != 0 {
		l.conns[c.fd] = nil
	}
	_ = unix.Close(int(c.fd)) // takes it out of epoll, too
	l.dropped = append(l.dropped, c)
}

// finish is the loop's last act.
func (l *loop) finish() {
	l.enter()
	l.leave() // joins those that were given to it meanwhile
	for _, c := range l.conns {
		if c != nil {
			l.drop(c)
		}
	}
	l.enter()
	l.leave()
	if l.accept >= 0 {
		l.closeListener()
	}
}
