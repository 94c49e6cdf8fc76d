// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

func itoa(i int) string { return strconv.Itoa(i) }

// conn is the connection to one peer. Everything is guarded by the mesh's mutex.
type conn struct {
	m        *Mesh
	peer     int
	fd       int
	addr     string
	gone     error  // why it cannot be used any more
	left     bool   // the peer said Bye
	sentCore uint16 // where this rank is, by the last frame

	in       reader
	out      writer
	window   window
	recvs    receives
	sends    sends
	notices  []ready // calls that this rank has not made yet
	activity activity
}

// ended handles the end of the stream.
func (c *conn) ended(errno syscall.Errno) {
	if c.left {
		c.close(c.leftError())
		return
	}
	// All ranks get to read this, the peer too if it lives.
	how := "closed without a shutdown message"
	if errno != 0 {
		how = "broke (" + errno.Error() + ")"
	}
	c.lose("its connection to rank " + itoa(c.m.rank) + " " + how + ": the process has died or was cut off")
}

// lose gives the peer up, and the collectives with it.
func (c *conn) lose(detail string) {
	err := &cohort.Error{Op: "group", Code: cohort.PeerLost, Rank: cohort.Rank(c.peer), Peer: c.addr, Detail: detail}
	c.close(err)
	c.m.lose(err)
	c.m.report(transport.Loss{Rank: c.peer, How: transport.Died, Err: err})
}

func (c *conn) leftError() error {
	return &cohort.Error{
		Op: "group", Code: cohort.PeerLost, Rank: cohort.Rank(c.peer), Peer: c.addr,
		Detail: "rank " + itoa(c.peer) + " has closed its end of the group",
	}
}

// leave handles a goodbye: nothing that is not here will come.
//
// A rank that closes the group because of a death may be heard before the death itself, which is the one to name. So the
// other connections are looked at first. What the goodbye says counts if this rank has seen no death.
func (c *conn) leave(lossReason error) {
	for _, other := range c.m.mu.conns {
		if other != nil && other != c && other.gone == nil && !other.left {
			other.read()
		}
	}
	if c.gone != nil {
		return
	}
	left := c.leftError()
	reason := left
	if lossReason != nil {
		reason = lossReason
		if c.m.mu.lost != nil {
			reason = c.m.mu.lost
		}
	}
	c.close(reason)
	if cohort.CodeOf(lossReason) == cohort.PeerLost {
		c.m.lose(reason)
	}
	c.m.report(transport.Loss{Rank: c.peer, How: transport.Left, Err: left})
}

// lossReason is why the peer leaves, or nil if its goodbye does not say it. That the peer has lost itself or this rank is nothing that this
// rank could name.
func (c *conn) lossReason(h nativewire.Header) error {
	if h.Total == 0 || h.Total >= maxCode || h.Slot > uint64(c.m.size) { //nolint:gosec // not negative
		return nil
	}
	blamed := int(h.Slot) - 1 //nolint:gosec // at most the size
	if h.Total == uint64(cohort.PeerLost) && (blamed < 0 || blamed == c.peer || blamed == c.m.rank) {
		return nil
	}
	return remoteFailure(c, h, "the reason why a rank has closed its end of the group")
}

// close ends the connection and every op that needs it. What has arrived stays for later receives.
func (c *conn) close(err error) {
	if c.gone != nil {
		return
	}
	c.gone = err
	_ = unix.EpollCtl(c.m.ep, unix.EPOLL_CTL_DEL, c.fd, nil)
	_ = unix.Close(c.fd)
	c.endAll(err)
	c.out.current, c.out.piece, c.out.control, c.in.buf = nil, nil, nil, nil // nothing is written or read any more
	m := c.m
	alive := func(rank int) bool { return m.mu.conns[rank] != nil && m.mu.conns[rank].gone == nil }
	transport.EndOrphans(&m.mu.anyRecvs, alive, len(m.mu.conns), func(op *transport.Op) { op.Complete(err) })
}

// endAll completes every op of the connection with err.
func (c *conn) endAll(err error) { c.endSome(err, func(uint64) bool { return true }) }

// endSome completes the ops on some slots with err.
func (c *conn) endSome(err error, ends func(slot uint64) bool) {
	if ends(c.in.header.Slot) {
		if c.in.filling != nil && c.in.header.Type == nativewire.Eager { // it is in no list while it is filled
			c.in.filling.Complete(err)
		}
		if c.in.held != nil && c.in.header.Type == nativewire.Eager {
			c.recvs.inbox.Remove(c.in.held)
		}
		c.in.drop()
	}
	if op := c.out.current; op != nil && op != &c.out.orphan && ends(op.Slot) {
		c.abandon(op)
		op.Complete(err)
	}
	for _, l := range []*transport.List{&c.recvs.posted, &c.recvs.granted, &c.out.fresh, &c.out.granted, &c.sends.waiting} {
		for op := l.Head; op != nil; {
			next := op.State.Next
			if ends(op.Slot) {
				l.Remove(op)
				if l == &c.out.fresh {
					c.unspend(op)
				}
				op.Complete(err)
			}
			op = next
		}
	}
}

// byeLimit is how long Close waits until the peers have taken what was sent.
const byeLimit = time.Second

// Close says goodbye, waits a short time until the peers have taken what was sent, and releases everything.
func (m *Mesh) Close() error {
	m.closeOnce.Do(func() {
		m.leaveAll()
		close(m.released)
	})
	failpoint.At("tcp.close.over")
	<-m.released // of the call that did it, in whichever goroutine
	return nil
}

func (m *Mesh) leaveAll() {
	failpoint.At("tcp.close")
	m.mu.Lock()
	m.mu.leaving = true
	bye := nativewire.Header{Type: nativewire.Bye}
	switch {
	case m.mu.err != nil:
		bye, _ = failureFrame(nativewire.Bye, m.mu.err)
	case m.mu.lost != nil:
		bye, _ = failureFrame(nativewire.Bye, m.mu.lost)
	}
	for _, c := range m.mu.conns {
		if c == nil {
			continue
		}
		c.endAll(errClosed())
		if c.gone != nil {
			continue
		}
		c.queueFrame(bye)
		c.flush()
	}
	for op := m.mu.anyRecvs.Pop(); op != nil; op = m.mu.anyRecvs.Pop() {
		op.Complete(errClosed())
	}
	m.mu.err = errClosed()
	m.wake()
	m.mu.Unlock()
	m.drainGoodbyes()
	failpoint.At("tcp.close.end")
	m.mu.Lock()
	m.mu.closed = true
	m.wake()
	for _, c := range m.mu.conns {
		if c != nil {
			c.close(errClosed())
		}
	}
	for _, op := range m.mu.driver.sleepers {
		op.Nudge()
	}
	m.mu.Unlock()
	close(m.stop)
	_ = m.watch.file.SetReadDeadline(time.Unix(1, 0))
	failpoint.At("tcp.close.keeper")
	m.keeper.Wait()
	// A driver may still be in the kernel with the epoll instance.
	for {
		m.mu.Lock()
		busy := m.mu.driver.taken
		m.mu.Unlock()
		if !busy {
			break
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // bounded: the driver leaves within its slice
	}
	m.closeFiles()
}

// drainGoodbyes writes what is left and waits until every peer has closed its side too, or the limit has passed: a socket that
// is closed with unread data resets the connection and takes back what was sent.
func (m *Mesh) drainGoodbyes() {
	limit := time.Now().Add(byeLimit)
	shut := make([]bool, m.size)
	for time.Now().Before(limit) {
		open := false
		failpoint.At("tcp.close.linger")
		m.mu.Lock()
		for rank, c := range m.mu.conns {
			if c == nil || c.gone != nil {
				continue
			}
			c.flush()
			if c.gone == nil && (c.out.idle() || c.out.broken) && !shut[rank] {
				shut[rank] = true
				_ = unix.Shutdown(c.fd, unix.SHUT_WR)
			}
			if c.gone == nil {
				c.read()
			}
			open = open || c.gone == nil
		}
		m.mu.Unlock()
		if !open {
			return
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // bounded by the limit above
	}
}

func (m *Mesh) closeFiles() {
	m.watch.close()
	if m.ep >= 0 {
		_ = unix.Close(m.ep)
	}
	if m.event >= 0 {
		_ = unix.Close(m.event)
	}
}
