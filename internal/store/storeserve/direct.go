// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"sync"
	"time"
)

// directWriter writes small answers from the goroutine that has made them, so that no other one has to be woken for that. It never
// blocks: what the socket does not take is left to the connection's own writer.
type directWriter struct {
	busy sync.Mutex // held by the one who writes
	buf  []byte     // what is written directly
	rest []byte     // what the socket did not take of it
}

// directSize is the largest answer that is written directly.
const directSize = 16 << 10

// takeDirectly takes what the machine has for c, to be written after the lock is released. It is called under the lock.
func (d *goDriver) takeDirectly(c *goConn) bool {
	owed := c.state.Owed()
	if owed == 0 || owed > directSize || !c.direct.busy.TryLock() {
		return false
	}
	if len(c.direct.rest) > 0 {
		c.direct.busy.Unlock()
		return false
	}
	c.direct.buf = c.direct.buf[:0]
	for _, piece := range c.state.Pending(nil, owed) {
		c.direct.buf = append(c.direct.buf, piece...)
	}
	d.core.Machine.Sent(c.state, len(c.direct.buf))
	return true
}

// writeDirectly writes what was taken, as far as the socket takes it.
func (c *goConn) writeDirectly() {
	n := tryWrite(c.Conn, c.direct.buf)
	if n < len(c.direct.buf) {
		c.direct.rest = c.direct.buf[n:]
		c.direct.buf = nil
		select {
		case c.write <- struct{}{}:
		default:
		}
	}
	c.direct.busy.Unlock()
	select {
	case c.resume <- struct{}{}:
	default:
	}
}

// writeRest writes what the socket did not take, and waits for that. It reports false if the connection has failed.
func (c *goConn) writeRest(stall time.Duration) bool {
	if len(c.direct.rest) == 0 {
		return true
	}
	_ = c.SetWriteDeadline(time.Now().Add(stall))
	_, err := c.Write(c.direct.rest)
	c.direct.rest = nil
	return err == nil
}
