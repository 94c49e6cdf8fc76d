// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"cmp"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// goDriver serves any net.Listener with two goroutines for each connection and a lock around the machine. It is used
// on systems without epoll and for listeners that are not sockets.
type goDriver struct {
	listener net.Listener
	joined   sync.WaitGroup
	core     *Core         // its machine is guarded by mu
	gone     chan struct{} // closed when draining and no client is left

	mu struct {
		sync.Mutex

		conns    map[*goConn]struct{}
		ended    bool
		draining bool
		turning  bool // turns runs
		expireAt int64
	}
}

type goConn struct {
	net.Conn
	state      *storecore.Conn
	write      chan struct{} // there is output
	resume     chan struct{} // it may be read from again
	givenUp    chan struct{} // closed when the connection is given up
	giveUpOnce sync.Once
	direct     directWriter
}

const (
	goReadSize  = 16 << 10
	goWriteSize = 64 << 10
)

func newGoDriver(l net.Listener, c *Core) *goDriver {
	d := &goDriver{listener: l, core: c, gone: make(chan struct{})}
	d.mu.conns = map[*goConn]struct{}{}
	d.joined.Add(1)
	go d.accept()
	return d
}

func (d *goDriver) accept() {
	defer d.joined.Done()
	pause := time.Duration(0)
	for {
		conn, err := d.listener.Accept()
		if err == nil {
			if pause = 0; d.core.users.AcceptsConn(conn) {
				d.add(conn)
			} else {
				_ = conn.Close()
			}
			continue
		}
		d.mu.Lock()
		over := d.mu.ended || d.mu.draining || errors.Is(err, net.ErrClosed)
		d.mu.Unlock()
		if over {
			return
		}
		// Out of descriptors, most likely: try again when some may be free.
		events, _ := d.step(func() bool { return d.core.Machine.DropSilent() })
		d.core.emit(events)
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		timer := time.NewTimer(pause)
		<-timer.C
	}
}

func (d *goDriver) add(conn net.Conn) {
	peer := conn.RemoteAddr().String()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
	}
	c := &goConn{Conn: conn, write: make(chan struct{}, 1), resume: make(chan struct{}, 1), givenUp: make(chan struct{})}
	events, kept := d.step(func() bool {
		if d.mu.ended || d.mu.draining {
			return false
		}
		if len(d.mu.conns) >= d.core.config.Conns && !d.core.Machine.DropSilent() {
			d.core.refused(peer, tooManyConns(d.core.config.Conns))
			return false
		}
		c.state = d.core.Machine.Open(peer, c)
		d.mu.conns[c] = struct{}{}
		d.core.opened(peer)
		d.joined.Add(2)
		return true
	})
	d.core.emit(events)
	if !kept {
		_ = conn.Close()
		return
	}
	go d.read(c)
	go d.send(c)
}

// step runs fn and whatever follows from it under the lock, and returns the events for the hook.
func (d *goDriver) step(fn func() bool) ([]observe.Event, bool) {
	events, writes, ok := d.locked(fn)
	for _, c := range writes {
		c.writeDirectly()
	}
	if d.core.config.Unlocked != nil {
		d.core.config.Unlocked()
	}
	return events, ok
}

// locked is the part of step under the lock. It also returns the connections that are to be written to directly.
func (d *goDriver) locked(fn func() bool) (events []observe.Event, writes []*goConn, ok bool) {
	failpoint.At("storeserve.lock")
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.core.tick()
	ok = fn()
	if d.core.Machine.Busy() {
		d.core.Machine.Resume()
	}
	if d.core.Machine.Queued() {
		d.core.Machine.Admit()
	}
	if now >= d.mu.expireAt {
		d.mu.expireAt = now + int64(unfinishedCheck)
		d.core.Machine.Expire(maxChecks)
	}
	for _, state := range d.core.Machine.Dirty() {
		c, is := state.Owner.(*goConn)
		if !is {
			continue
		}
		if state.Cut() != nil {
			d.core.cut(state)
			c.giveUp()
			continue
		}
		if d.core.config.Unlocked != nil && d.takeDirectly(c) {
			writes = append(writes, c)
			continue
		}
		select {
		case c.write <- struct{}{}:
		default:
		}
	}
	if d.core.journal != nil {
		d.core.propose()
	}
	if d.core.Machine.Busy() && !d.mu.turning && !d.mu.ended {
		d.mu.turning = true
		d.joined.Add(1)
		go d.turns()
	}
	if d.core.config.Stepped != nil {
		d.core.config.Stepped()
	}
	return d.core.takeEvents(), writes, ok
}

// turns gives the machine turns as long as it has something to do that no connection asks for any more.
func (d *goDriver) turns() {
	defer d.joined.Done()
	for {
		events, busy := d.step(func() bool {
			d.mu.turning = d.core.Machine.Busy() && !d.mu.ended
			return d.mu.turning
		})
		d.core.emit(events)
		if !busy {
			return
		}
	}
}

func (c *goConn) giveUp() {
	c.giveUpOnce.Do(func() {
		close(c.givenUp)
		_ = c.Close()
	})
}

// read passes what the client sends to the machine.
func (d *goDriver) read(c *goConn) {
	defer d.joined.Done()
	defer d.remove(c)
	buf := make([]byte, goReadSize)
	size := goReadSize
	for {
		failpoint.At("storeserve.read")
		n, err := c.Read(buf[:size])
		if n > 0 {
			events, paused := d.step(func() bool {
				d.core.Machine.Receive(c.state, buf[:n])
				size = cmp.Or(d.core.Machine.ReadSize(c.state), goReadSize)
				return c.state.Paused()
			})
			d.core.emit(events)
			if paused && !d.awaitTurn(c) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// awaitTurn returns when a client may be read from again, or false when it was given up.
func (d *goDriver) awaitTurn(c *goConn) bool {
	look := time.NewTicker(retryPause) // there may be no other client whose step gives it its turn
	defer look.Stop()
	for {
		failpoint.At("storeserve.turn")
		busy := false
		events, paused := d.step(func() bool {
			busy = d.core.Machine.Busy()
			return c.state.Paused()
		})
		d.core.emit(events)
		if paused && !busy {
			select {
			case <-c.resume:
			case <-look.C:
			case <-c.givenUp:
				return false
			}
		}
		select {
		case <-c.givenUp:
			return false
		default:
		}
		if !paused {
			return true
		}
	}
}

// remove forgets a connection that ended.
func (d *goDriver) remove(c *goConn) {
	c.giveUp()
	events, _ := d.step(func() bool {
		if c.state.Cut() == nil {
			d.core.gone(c.state)
		}
		d.core.Machine.Close(c.state)
		delete(d.mu.conns, c)
		d.checkGone()
		return true
	})
	d.core.emit(events)
}

// send writes what the machine has for the client.
func (d *goDriver) send(c *goConn) {
	defer d.joined.Done()
	var pieces [][]byte
	for {
		select {
		case <-c.write:
		case <-c.givenUp:
			return
		}
		for {
			c.direct.busy.Lock()
			if !c.writeRest(d.core.config.Stall) {
				c.direct.busy.Unlock()
				c.giveUp()
				return
			}
			d.mu.Lock()
			pieces = c.state.Pending(pieces[:0], goWriteSize)
			d.mu.Unlock()
			if len(pieces) == 0 {
				c.direct.busy.Unlock()
				break
			}
			_ = c.SetWriteDeadline(time.Now().Add(d.core.config.Stall))
			failpoint.At("storeserve.write")
			rest := net.Buffers(pieces) // which WriteTo empties
			n, err := rest.WriteTo(c.Conn)
			events, _ := d.step(func() bool {
				d.core.Machine.Sent(c.state, int(n))
				if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
					d.core.Machine.Refuse(c.state, stalled(d.core.config.Stall, c.state.Owed()))
				}
				return true
			})
			c.direct.busy.Unlock()
			d.core.emit(events)
			select {
			case c.resume <- struct{}{}:
			default:
			}
			if err != nil {
				c.giveUp()
				return
			}
		}
	}
}

func (d *goDriver) do(fn func(*Core)) bool {
	events, ran := d.step(func() bool {
		if !d.mu.ended {
			fn(d.core)
		}
		return !d.mu.ended
	})
	d.core.emit(events)
	return ran
}

func (d *goDriver) drain() <-chan struct{} {
	d.mu.Lock()
	d.mu.draining = true
	d.checkGone()
	d.mu.Unlock()
	_ = d.listener.Close()
	return d.gone
}

// checkGone is called under the lock.
func (d *goDriver) checkGone() {
	if d.mu.draining && len(d.mu.conns) == 0 {
		select {
		case <-d.gone:
		default:
			close(d.gone)
		}
	}
}

func (d *goDriver) end() {
	d.mu.Lock()
	d.mu.ended = true
	for c := range d.mu.conns {
		c.giveUp()
	}
	d.mu.Unlock()
	_ = d.listener.Close()
	d.joined.Wait()
}

func stalled(limit time.Duration, owed int) error {
	return cohort.Newf("tcpstore: serve", cohort.Exhausted, "the client has read nothing for %v while %d bytes wait for it", limit, owed)
}

func tooManyConns(limit int) string {
	return cohort.Newf("tcpstore: serve", cohort.Exhausted, "%d connections are open: raise the limit", limit).Error()
}
