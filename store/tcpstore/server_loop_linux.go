// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/storecore"
)

// loop serves TCP connections from one goroutine: it waits for whatever socket is ready, reads what is there, lets the
// machine apply all whole requests, and writes the replies. A request then costs one read and one write; with a
// goroutine for each connection it would also cost two hand-offs between threads.
//
// Each connection gets at most one buffer of work per turn, so that none can keep the others waiting.
type loop struct {
	core   *core
	poll   int // epoll descriptor
	accept int // listener, -1 once closed
	waker  int // eventfd

	conns    []*loopConn // by descriptor
	open     int
	serial   int32
	buf      []byte
	events   []unix.EpollEvent
	stuck    map[*loopConn]struct{} // those whose output does not fit into their socket
	now      int64
	checkAt  int64 // when to look at stuck connections next
	expireAt int64 // when to look for requests that were left unfinished next
	acceptAt int64 // when to accept again after the process ran out of descriptors; 0: accepting
	starved  bool  // the last attempt to accept failed
	draining bool
	gone     chan struct{}
	done     chan struct{}

	mu struct {
		sync.Mutex

		calls []func()
		stop  bool // end was called
		ended bool // no call is taken any more
	}
}

// loopConn is a connection. An event names its serial as well as its descriptor, so that one that was closed and whose
// descriptor is used again is not taken for the new one.
type loopConn struct {
	state   *storecore.Conn
	fd      int32
	serial  int32
	wants   uint32 // the events that epoll is asked for
	closed  bool
	movedAt int64 // when output last went out
}

const (
	loopReadSize    = 64 << 10
	loopWriteSize   = 256 << 10 // at most so much of one reply per turn
	loopEvents      = 256
	acceptsPerTurn  = 128
	nodelayKeepIdle = 60 // seconds of silence before a client's host is asked whether it is still there
)

func newLoop(l *net.TCPListener, c *core) (*loop, error) {
	d := &loop{
		core: c, poll: -1, accept: -1, waker: -1, buf: make([]byte, loopReadSize), events: make([]unix.EpollEvent, loopEvents),
		stuck: map[*loopConn]struct{}{}, gone: make(chan struct{}), done: make(chan struct{}),
	}
	if err := d.setUp(l); err != nil {
		d.closeFDs()
		return nil, err
	}
	_ = l.Close() // the loop has its own copy of the descriptor
	go d.run()
	return d, nil
}

func (d *loop) setUp(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var dup error
	if err = raw.Control(func(fd uintptr) {
		d.accept, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return err
	}
	if dup != nil {
		return dup
	}
	if err = unix.SetNonblock(d.accept, true); err != nil {
		return err
	}
	// Accepted sockets inherit these from the listener.
	_ = unix.SetsockoptInt(d.accept, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(d.accept, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(d.accept, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, nodelayKeepIdle)
	if d.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if d.waker, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	for _, fd := range []int{d.accept, d.waker} {
		if err := unix.EpollCtl(d.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil { //nolint:gosec // descriptors are small
			return err
		}
	}
	return nil
}

func (d *loop) closeFDs() {
	for _, fd := range []*int{&d.accept, &d.poll, &d.waker} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// run is the loop's goroutine.
func (d *loop) run() {
	defer close(d.done)
	for {
		n := d.wait()
		d.now = d.core.tick()
		for i := range n {
			if ev := &d.events[i]; !d.dispatch(ev) {
				d.finish()
				return
			}
		}
		if d.core.machine.Busy() {
			d.core.machine.Resume()
			d.flush()
		}
		if d.core.machine.Crowded() {
			d.core.machine.Admit()
			d.flush()
		}
		if d.now >= d.checkAt {
			d.checkStuck()
		}
		if d.now >= d.expireAt {
			d.expireAt = d.now + int64(halfCheck)
			d.core.machine.Expire(halfLooks)
			d.flush()
		}
		if d.acceptAt != 0 && d.now >= d.acceptAt {
			d.acceptAgain()
		}
		if d.core.hook != nil {
			d.core.emit(d.core.takeEvents())
		}
	}
}

// wait returns the number of events. Under load something is always ready; then the kernel is asked without telling the
// scheduler, which costs as much as the call itself.
func (d *loop) wait() int {
	if n := pollNow(d.poll, d.events); n > 0 || d.core.machine.Busy() {
		return n
	}
	moment.At("tcpstore.server.wait")
	timeout := time.Duration(-1)
	for _, until := range []struct {
		when bool
		then time.Duration
	}{
		{d.core.machine.Halves(), halfCheck},
		{len(d.stuck) > 0, time.Duration(d.stallCheck())},
		{d.core.machine.Crowded() || d.acceptAt != 0, retryPause},
	} {
		if until.when && (timeout < 0 || until.then < timeout) {
			timeout = until.then
		}
	}
	milliseconds := -1
	if timeout >= 0 {
		milliseconds = int(timeout/time.Millisecond) + 1
	}
	n, err := unix.EpollWait(d.poll, d.events, milliseconds)
	if err != nil {
		return 0 // EINTR
	}
	return n
}

// dispatch handles one event. It returns false when the loop is to end.
func (d *loop) dispatch(ev *unix.EpollEvent) bool {
	switch int(ev.Fd) {
	case d.waker:
		return d.runCalls()
	case d.accept:
		d.acceptSome(acceptsPerTurn)
		return true
	}
	if int(ev.Fd) >= len(d.conns) {
		return true
	}
	c := d.conns[ev.Fd]
	if c == nil || c.serial != ev.Pad {
		return true // closed earlier in this turn
	}
	if ev.Events&unix.EPOLLOUT != 0 {
		d.send(c)
		d.flush()
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 && !c.closed {
		d.read(c)
		d.flush()
	}
	return true
}

// read takes one buffer from a client.
func (d *loop) read(c *loopConn) {
	if c.state.Paused() {
		// It may not send more until it reads; asked for nothing, epoll still tells of its end.
		if c.wants&unix.EPOLLIN == 0 {
			d.drop(c)
		} else {
			d.arm(c)
		}
		return
	}
	moment.At("tcpstore.server.read")
	buf := d.buf
	if n := d.core.machine.ReadSize(c.state); n > 0 {
		buf = buf[:n]
	}
	n, errno := readNow(int(c.fd), buf)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
	case errno != 0 || n == 0:
		d.drop(c)
	default:
		d.core.machine.Receive(c.state, d.buf[:n])
	}
}

// flush sends what the last step produced, to whomever.
func (d *loop) flush() {
	for dirty := d.core.machine.Dirty(); len(dirty) > 0; dirty = d.core.machine.Dirty() {
		for _, state := range dirty {
			c, ok := state.Owner.(*loopConn)
			switch {
			case !ok || c.closed:
			case state.Cut() != nil:
				d.core.cut(state)
				d.drop(c)
			case c.wants&unix.EPOLLOUT == 0: // else it is not ready: epoll will tell
				d.send(c)
			}
		}
	}
}

// send writes a client's output, one piece a turn, and arranges for the rest. What it makes room for is applied at once
// and sent in the next turn: a client that reads fast does not keep others waiting.
func (d *loop) send(c *loopConn) {
	pending := c.state.Pending()
	if len(pending) > 0 {
		moment.At("tcpstore.server.write")
		n, errno := writeNow(int(c.fd), pending[:min(len(pending), loopWriteSize)])
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
			d.drop(c)
			return
		}
		if n > 0 {
			c.movedAt = d.now
			d.core.machine.Sent(c.state, n)
		}
	}
	d.arm(c)
}

// arm asks epoll for what the connection needs next.
func (d *loop) arm(c *loopConn) {
	wants := uint32(unix.EPOLLIN)
	if c.state.Paused() {
		wants = 0
	}
	if len(c.state.Pending()) > 0 {
		wants |= unix.EPOLLOUT
	}
	if wants == c.wants {
		return
	}
	if had, has := c.wants&unix.EPOLLOUT, wants&unix.EPOLLOUT; has != had {
		if has != 0 {
			c.movedAt = d.now
			if len(d.stuck) == 0 {
				d.checkAt = d.now + d.stallCheck()
			}
			d.stuck[c] = struct{}{}
		} else {
			delete(d.stuck, c)
		}
	}
	c.wants = wants
	ev := unix.EpollEvent{Events: wants, Fd: c.fd, Pad: c.serial}
	if err := unix.EpollCtl(d.poll, unix.EPOLL_CTL_MOD, int(c.fd), &ev); err != nil {
		d.drop(c)
	}
}

// stallCheck is how often to look at clients that do not read, in nanoseconds.
func (d *loop) stallCheck() int64 { return int64(min(time.Second, d.core.limits.Stall/4)) }

// checkStuck cuts clients that have not read anything for too long.
func (d *loop) checkStuck() {
	d.checkAt = d.now + d.stallCheck()
	for c := range d.stuck {
		if d.now-c.movedAt > int64(d.core.limits.Stall) {
			d.core.machine.Refuse(c.state, stalled(d.core.limits.Stall, len(c.state.Pending())))
		}
	}
	d.flush()
}

// drop closes a connection and forgets it.
func (d *loop) drop(c *loopConn) {
	if c.closed {
		return
	}
	c.closed = true
	moment.At("tcpstore.server.drop")
	if c.state.Cut() == nil {
		d.core.gone(c.state)
	}
	d.core.machine.Close(c.state)
	delete(d.stuck, c)
	d.conns[c.fd] = nil
	d.open--
	_ = unix.Close(int(c.fd)) // takes it out of epoll, too
	d.checkGone()
}

func (d *loop) checkGone() {
	if !d.draining || d.open > 0 {
		return
	}
	select {
	case <-d.gone:
	default:
		close(d.gone)
	}
}

// acceptSome takes up to limit new connections.
func (d *loop) acceptSome(limit int) {
	for range limit {
		moment.At("tcpstore.server.accept")
		fd, from, err := unix.Accept4(d.accept, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			d.starved = false
			d.add(fd, peerName(from))
		case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		case unix.EAGAIN:
			return
		default:
			d.pauseAccepting(err)
			return
		}
	}
}

func (d *loop) add(fd int, peer string) {
	if d.open >= d.core.limits.Conns {
		d.core.refused(peer, tooManyConns(d.core.limits.Conns))
		_ = unix.Close(fd)
		return
	}
	d.serial++
	c := &loopConn{fd: int32(fd), serial: d.serial, wants: unix.EPOLLIN} //nolint:gosec // descriptors are small
	if err := unix.EpollCtl(d.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: c.wants, Fd: c.fd, Pad: c.serial}); err != nil {
		d.core.refused(peer, err.Error())
		_ = unix.Close(fd)
		return
	}
	c.state = d.core.machine.Open(peer, c)
	for fd >= len(d.conns) {
		d.conns = append(d.conns, make([]*loopConn, max(64, len(d.conns)))...)
	}
	d.conns[fd] = c
	d.open++
	d.core.opened(peer)
}

// pauseAccepting waits for descriptors to become free instead of asking for one again and again.
func (d *loop) pauseAccepting(err error) {
	_ = unix.EpollCtl(d.poll, unix.EPOLL_CTL_DEL, d.accept, nil)
	d.acceptAt = d.now + int64(retryPause)
	if d.starved {
		return // it was told already
	}
	d.starved = true
	d.core.refused("", "cannot accept: "+err.Error()+"; raise the limit of open files")
}

func (d *loop) acceptAgain() {
	d.acceptAt = 0
	if d.accept >= 0 {
		_ = unix.EpollCtl(d.poll, unix.EPOLL_CTL_ADD, d.accept, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(d.accept)}) //nolint:gosec // descriptors are small
	}
}

func peerName(from unix.Sockaddr) string {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String() //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)).String() //nolint:gosec // a port
	default:
		return "unknown"
	}
}
