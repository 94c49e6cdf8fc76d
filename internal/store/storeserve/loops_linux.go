// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"math/bits"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// loops serves TCP connections from a few goroutines, each with sockets of its own: see [loop]. All of them work on one
// machine under one lock. It is held for what the machine does and never for a system call: a request takes some
// microseconds in the kernel and a fifth of one in the machine, so that is what many cores can share.
//
// A connection belongs to one loop. What a loop finds to be done for a connection of another one stays in the machine's list
// of that one's dirty connections, which is bounded by their number, and the other one is woken if it sleeps.
type loops struct {
	all             []*loop
	core            *Core          // its machine and its events are guarded by mu
	joined          sync.WaitGroup // the loops' goroutines
	closedListeners chan struct{}  // closed when no loop accepts any more
	gone            chan struct{}  // closed when draining and no client is left
	scarce          atomic.Bool    // see storecore.Machine.Scarce
	hooks           turnstile

	mu struct {
		sync.Mutex

		tickets   uint64 // for the turnstile, given so far
		asleep    uint64 // a bit for each loop that waits in the kernel
		accepting int    // loops that have the listener
		open      int    // connections, arrivals included
		expireAt  int64  // when to look for requests that were left unfinished next
		arrivals  arrivals
		draining  bool
		stop      bool // end was called: no call is taken any more
	}
}

// turnstile lets the loops pass one by one, in the order of their tickets: the hook hears of events in the order in which they
// happened, though it is called without the lock.
type turnstile struct {
	sync.Mutex
	sync.Cond

	passed uint64
}

// arrivals are connections that were accepted and are not served yet. A client that ends one connection and opens another
// must find that the first has ended, also when two loops serve them. So a connection is served only after every loop has
// looked once more at all of its sockets since it was accepted.
type arrivals struct {
	now   []*loopConn // for whom the loops scan their sockets
	next  []*loopConn // for whom they will do so after that
	scans uint64      // a bit for each loop that has not done so yet
}

func newLoops(l *net.TCPListener, c *Core, config Config) (*loops, error) {
	d := &loops{core: c, closedListeners: make(chan struct{}), gone: make(chan struct{})}
	d.hooks.L = &d.hooks
	for i := range config.Loops {
		own, err := newLoop(d, i, l)
		if err != nil {
			d.closeFDs()
			return nil, err
		}
		if config.meter != nil {
			own.meter = config.meter()
		}
		d.all = append(d.all, own)
	}
	_ = l.Close() // the loops have their own copies of the descriptor
	d.mu.accepting = len(d.all)
	for _, own := range d.all {
		d.joined.Add(1)
		go own.run()
	}
	return d, nil
}

// everyone has a bit for each loop.
func (d *loops) everyone() uint64 { return 1<<len(d.all) - 1 }

// toWakeLocked returns which loops, of those that sleep, have something to do, as bits, and counts them as awake.
func (d *loops) toWakeLocked() uint64 {
	who := (d.core.Machine.DirtyLoops() | d.mu.arrivals.scans) & d.mu.asleep
	d.mu.asleep &^= who
	return who
}

// wake ends the sleep of loops. It is called by a loop, or under the lock before stop was set under it: the descriptors are
// closed after all loops have ended.
func (d *loops) wake(who uint64) {
	for ; who != 0; who &= who - 1 {
		failpoint.At("storeserve.wake")
		one := [8]byte{1}
		_, _ = unix.Write(d.all[bits.TrailingZeros64(who)].waker, one[:])
	}
}

// do runs fn under the lock.
func (d *loops) do(fn func(*Core)) bool {
	failpoint.At("storeserve.call")
	d.mu.Lock()
	if d.mu.stop {
		d.mu.Unlock()
		return false
	}
	d.core.tick()
	fn(d.core)
	if d.core.journal != nil {
		d.core.propose()
	}
	who := d.toWakeLocked()
	if d.core.Machine.Busy() || d.core.Machine.Queued() || len(d.core.events) > 0 {
		who |= 1 // a loop has to go on with it
	}
	d.wake(who)
	d.mu.Unlock()
	return true
}

// takeEventsLocked returns what is owed to the hook, with a ticket for the turnstile.
func (d *loops) takeEventsLocked() (events []observe.Event, ticket uint64) {
	if len(d.core.events) == 0 {
		return nil, 0
	}
	ticket = d.mu.tickets
	d.mu.tickets++
	return d.core.takeEvents(), ticket
}

// emit calls the hook when it is the ticket's turn.
func (d *loops) emit(events []observe.Event, ticket uint64) {
	if len(events) == 0 {
		return
	}
	failpoint.At("storeserve.hook")
	d.hooks.Lock()
	for d.hooks.passed != ticket {
		d.hooks.Wait()
	}
	d.hooks.Unlock()
	d.core.emit(events)
	d.hooks.Lock()
	d.hooks.passed++
	d.hooks.Broadcast()
	d.hooks.Unlock()
}

func (d *loops) drain() <-chan struct{} {
	failpoint.At("storeserve.drain")
	d.mu.Lock()
	if !d.mu.draining && !d.mu.stop {
		d.mu.draining = true
		d.wake(d.everyone())
	}
	d.mu.Unlock()
	<-d.closedListeners
	return d.gone
}

func (d *loops) end() {
	failpoint.At("storeserve.end")
	d.mu.Lock()
	if !d.mu.stop {
		d.mu.stop, d.mu.draining = true, true
		d.wake(d.everyone())
	}
	d.mu.Unlock()
	d.joined.Wait()
	d.mu.Lock()
	for _, c := range append(d.mu.arrivals.now, d.mu.arrivals.next...) {
		_ = unix.Close(int(c.fd))
		d.mu.open--
	}
	d.mu.arrivals = arrivals{}
	d.checkGoneLocked()
	events, ticket := d.takeEventsLocked()
	d.mu.Unlock()
	d.emit(events, ticket)
	d.closeFDs()
}

func (d *loops) closeFDs() {
	for _, l := range d.all {
		l.closeFDs()
	}
}

// checkGoneLocked notes when the last client has gone.
func (d *loops) checkGoneLocked() {
	if !d.mu.draining || d.mu.accepting > 0 || d.mu.open > 0 {
		return
	}
	select {
	case <-d.gone:
	default:
		close(d.gone)
	}
}

// arriveLocked takes connections that were accepted, and returns those that are one too many.
func (d *loops) arriveLocked(accepted []*loopConn) (refused []*loopConn) {
	for _, c := range accepted {
		if d.mu.open >= d.core.config.Conns && !d.core.Machine.DropSilent() {
			d.core.refused(c.peer, tooManyConns(d.core.config.Conns))
			refused = append(refused, c)
			continue
		}
		d.mu.open++
		d.mu.arrivals.next = append(d.mu.arrivals.next, c)
	}
	if len(d.all) == 1 { // which serves it after all that it knows of already
		d.admitLocked(d.mu.arrivals.next)
		d.mu.arrivals.next = d.mu.arrivals.next[:0]
	} else if len(d.mu.arrivals.now) == 0 {
		d.nextRoundLocked()
	}
	return refused
}

// nextRoundLocked has all loops look at their sockets for those who wait for that.
func (d *loops) nextRoundLocked() {
	a := &d.mu.arrivals
	if a.now, a.next = a.next, a.now[:0]; len(a.now) > 0 {
		a.scans = d.everyone()
	}
}

// scannedLocked notes that a loop has scanned all of its sockets since it was asked to.
func (d *loops) scannedLocked(bit uint64) {
	a := &d.mu.arrivals
	if a.scans &^= bit; a.scans != 0 || d.mu.stop { // a loop that has ended takes no connections: end closes them
		return
	}
	d.admitLocked(a.now)
	a.now = a.now[:0]
	d.nextRoundLocked()
}

// admitLocked gives connections to the loops that have the fewest, and clears the list.
func (d *loops) admitLocked(arrived []*loopConn) {
	m := d.core.Machine
	for _, c := range arrived {
		c.state = m.OpenAt(m.Quietest(), c.peer, c)
		d.core.opened(c.peer)
		m.Touch(c.state)
	}
	clear(arrived)
}

// droppedLocked forgets a connection whose socket is closed.
func (d *loops) droppedLocked(c *loopConn) {
	switch {
	case c.failed != nil:
		d.core.refused(c.peer, c.failed.Error())
	case c.state.Cut() == nil:
		d.core.gone(c.state)
	}
	d.core.Machine.Close(c.state)
	d.mu.open--
	d.checkGoneLocked()
}

// expireLocked cuts clients that have left a request unfinished. It is called now and then.
func (d *loops) expireLocked(now int64) {
	d.mu.expireAt = now + int64(unfinishedCheck)
	d.core.Machine.Expire(maxChecks)
}
