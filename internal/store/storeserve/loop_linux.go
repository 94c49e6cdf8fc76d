// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
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
	waker  int    // eventfd
	events []unix.EpollEvent

	turn           turn
	scansLeft      int // turns until all sockets have been checked for new connections; 0: there are none
	inbox          inbox
	acceptor       acceptor
	conns          connTable
	stuck          stuckConns
	crossLoopCalls crossLoopCalls
	unreported     unreported
	meter          *meter
}

// turn is what a loop knows of its turn.
type turn struct {
	now    int64
	ticked bool // the machine knows that it has begun
	served int  // sockets that were ready last
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
		loops: d, number: number, bit: 1 << number, poll: -1, waker: -1, acceptor: acceptor{fd: -1, users: d.core.users},
		inbox: inbox{buf: make([]byte, inboxSize)}, events: make([]unix.EpollEvent, loopEvents),
		stuck: stuckConns{all: map[*loopConn]struct{}{}, period: int64(min(time.Second, d.core.config.Stall/4))},
	}
	if err := l.setUp(listener); err != nil {
		l.closeFDs()
		return nil, err
	}
	return l, nil
}

func (l *loop) closeFDs() {
	for _, fd := range []*int{&l.acceptor.fd, &l.poll, &l.waker} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// run is the loop's goroutine.
func (l *loop) run() {
	defer l.joined.Done()
	l.meter.begin()
	defer l.meter.end()
	for {
		// Under load something is always ready; then the kernel is asked without telling the scheduler, which costs as much as
		// the call itself.
		//
		// A loop that finds nothing ready lets others have its core before it looks again and sleeps. Clients that were just
		// served want to run and will send more. One loop rarely runs dry under load; several do all the time, since each has
		// fewer clients, and to fall asleep and be woken costs more than a request.
		n := pollNow(l.poll, l.events)
		if patient := l.turn.served > 1 && len(l.all) > 1; n == 0 && patient {
			spinwait.YieldCore()
			n = pollNow(l.poll, l.events)
		}
		l.turn.served = n
		timeout, goOn := l.begin(n)
		if !goOn {
			l.finish()
			return
		}
		if timeout != awake {
			n = l.sleep(timeout)
			l.turn.served = n
		}
		for i := range n {
			l.dispatch(&l.events[i])
		}
		l.deliver()
		if l.acceptor.again != 0 && l.turn.now >= l.acceptor.again {
			l.acceptAgain()
		}
	}
}

// awake says that a loop has something to do.
const awake = time.Duration(-2)

// begin begins a turn in which n sockets are ready. It does what is owed to whomever. If there is nothing to do it returns for
// how long the loop may sleep, negative for ever, and else awake; false when the loop is to end.
func (l *loop) begin(n int) (timeout time.Duration, goOn bool) {
	l.turn.now, l.turn.ticked = l.core.clock.now(), false
	l.enter()
	m := l.core.Machine
	if m.Busy() {
		m.Resume()
	}
	if m.Queued() {
		m.Admit()
	}
	if l.turn.now >= l.mu.expireAt {
		l.expireLocked(l.turn.now)
	}
	if len(l.stuck.all) > 0 {
		l.checkStuckLocked()
	}
	if l.mu.arrivals.scans&l.bit != 0 {
		l.settleTurnLocked(n)
	}
	stop := l.mu.stop
	closedListeners := l.mu.draining && l.acceptor.fd >= 0
	timeout = awake
	if n == 0 && !stop && !closedListeners && !m.Busy() && l.scansLeft == 0 && (m.DirtyLoops()|l.mu.arrivals.scans)&l.bit == 0 {
		timeout = l.timeoutLocked()
		l.mu.asleep |= l.bit
	}
	l.leave()
	if closedListeners && !stop {
		l.stopAccepting()
	}
	return timeout, !stop
}

// pendingSteps is how many turns a loop takes to scan its sockets before new connections are served: one that finds
// what was sent before, one that finds the end of the connection behind it, and one that reports it to the machine.
const pendingSteps = 3

// settleTurnLocked counts the turns until all sockets were looked at for those who arrive, from the one in which it is known that
// this is owed; more where more sockets are ready than a turn looks at.
func (l *loop) settleTurnLocked(n int) {
	switch {
	case l.scansLeft == 0:
		l.scansLeft = pendingSteps + len(l.conns.byFD)/loopEvents
		return
	case n < loopEvents:
		l.scansLeft = min(l.scansLeft, pendingSteps)
	}
	// What this turn has found ready is looked at before the next one begins.
	if l.scansLeft--; l.scansLeft == 0 {
		l.scannedLocked(l.bit)
	}
}

// timeoutLocked is for how long a loop may sleep unless it is woken; negative is for ever.
func (l *loop) timeoutLocked() time.Duration {
	timeout := time.Duration(-1)
	for _, until := range []struct {
		when bool
		then time.Duration
	}{
		{l.core.Machine.Unfinished(), unfinishedCheck},
		{len(l.stuck.all) > 0, time.Duration(l.stuck.period)},
		{l.core.Machine.Queued() || l.acceptor.again != 0, retryPause},
	} {
		if until.when && (timeout < 0 || until.then < timeout) {
			timeout = until.then
		}
	}
	return timeout
}

// sleep waits for events and returns their number.
func (l *loop) sleep(timeout time.Duration) int {
	failpoint.At("storeserve.wait")
	milliseconds := -1
	if timeout >= 0 {
		milliseconds = int(timeout/time.Millisecond) + 1
	}
	n, err := unix.EpollWait(l.poll, l.events, milliseconds)
	l.turn.now, l.turn.ticked = l.core.clock.now(), false
	if err != nil {
		return 0 // EINTR
	}
	return n
}

// enter begins a step: it takes the lock, and reports to the machine what this loop has done since its last one.
func (l *loop) enter() {
	failpoint.At("storeserve.lock")
	l.mu.Lock()
	if l.meter != nil {
		l.meter.lock()
	}
	l.mu.asleep &^= l.bit
	if !l.turn.ticked {
		l.turn.ticked = true
		l.core.Machine.Tick(l.turn.now)
	}
	l.reportLocked()
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
		l.crossLoopCalls.add(c, state)
		if state.Cut() != nil {
			l.core.cut(state)
		}
	}
	if scarce := m.Scarce(); scarce != l.scarce.Load() {
		l.scarce.Store(scarce)
	}
	if l.core.journal != nil {
		l.core.propose()
	}
	who := l.toWakeLocked() &^ l.bit
	var events []observe.Event
	var ticket uint64
	if len(l.core.events) > 0 {
		events, ticket = l.takeEventsLocked()
	}
	if l.meter != nil {
		l.meter.unlock()
	}
	l.mu.Unlock()
	if who != 0 {
		l.wake(who)
	}
	if len(events) > 0 {
		l.emit(events, ticket)
	}
	for i := range l.crossLoopCalls.todo {
		l.perform(&l.crossLoopCalls.todo[i])
	}
	l.crossLoopCalls.reset()
}

// dispatch handles one event. What clients have sent is given to the machine before any other step, which could close their connections.
func (l *loop) dispatch(ev *unix.EpollEvent) {
	switch int(ev.Fd) {
	case l.waker:
		l.deliver()
		var count [8]byte
		_, _ = unix.Read(l.waker, count[:])
		l.enter()
		l.leave()
		return
	case l.acceptor.fd:
		l.deliver()
		l.acceptSome(acceptsPerTurn)
		return
	}
	c := l.conns.of(ev)
	if c == nil {
		return // closed earlier in this turn
	}
	if ev.Events&unix.EPOLLOUT != 0 && c.blocked {
		if l.deliver(); c.closed {
			return
		}
		c.blocked = false
		l.enter()
		l.core.Machine.Touch(c.state)
		l.leave()
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 && !c.closed {
		l.read(c, ev.Events)
	}
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
			l.stuck.add(c, l.turn.now)
		} else {
			l.stuck.remove(c)
		}
	}
	c.wants = wants
	ev := unix.EpollEvent{Events: wants, Fd: c.fd, Pad: c.serial}
	if err := unix.EpollCtl(l.poll, unix.EPOLL_CTL_MOD, int(c.fd), &ev); err != nil {
		l.drop(c)
	}
}

// checkStuckLocked cuts clients that have not read anything for too long.
func (l *loop) checkStuckLocked() {
	if !l.stuck.due(l.turn.now) {
		return
	}
	for c := range l.stuck.all {
		if l.turn.now-c.movedAt > int64(l.core.config.Stall) {
			l.core.Machine.Refuse(c.state, stalled(l.core.config.Stall, c.state.Owed()))
		}
	}
}

// drop closes a connection. The machine forgets it with the next step.
func (l *loop) drop(c *loopConn) {
	if c.closed {
		return
	}
	c.closed, c.have = true, nil
	failpoint.At("storeserve.drop")
	l.stuck.remove(c)
	l.conns.remove(c)
	_ = unix.Close(int(c.fd)) // takes it out of epoll, too
	l.unreported.dropped = append(l.unreported.dropped, c)
}

// finish is the loop's last act.
func (l *loop) finish() {
	l.enter()
	l.leave() // joins those that were given to it meanwhile
	for _, c := range l.conns.byFD {
		if c != nil {
			l.drop(c)
		}
	}
	l.enter()
	l.leave()
	if l.acceptor.fd >= 0 {
		l.closeListener()
	}
}
