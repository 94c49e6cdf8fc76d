// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

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
