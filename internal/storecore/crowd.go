// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"strconv"
	"time"
)

// When many clients ask for large values at once, the buffers that wait to be sent may be full. A native client is told
// so and asks again. PyTorch's clients have no words for it: they would have to be cut. Instead the request of such a
// client is left unread until others have read their replies; those who never do are cut by the driver after a while.

// crowdedError says that a reply of so many bytes has no room now.
type crowdedError int

func (e crowdedError) Error() string {
	return "no room for a reply of " + strconv.Itoa(int(e)) + " bytes"
}

// hold leaves the request that c has sent for later.
func (m *Machine) hold(c *Conn, needs int) {
	c.crowded, c.needs, c.since = true, needs, m.now
	m.crowd = append(m.crowd, c)
}

// leaveCrowd forgets a client that was closed while it was held back.
func (m *Machine) leaveCrowd(c *Conn) {
	if !c.crowded {
		return
	}
	c.crowded = false
	if m.crowdGone++; m.crowdGone > len(m.crowd)/2 {
		m.crowd = slices.DeleteFunc(m.crowd, func(c *Conn) bool { return c.closed })
		m.crowdGone = 0
	}
}

// Crowded reports whether clients wait for room in the buffers.
func (m *Machine) Crowded() bool { return len(m.crowd) > 0 }

// Admit lets clients go on that were held back, in their order, as far as there is room now. Those that have waited for
// longer than limit are refused. A driver calls it after each step while Crowded.
func (m *Machine) Admit(limit time.Duration) {
	for n := len(m.crowd); n > 0 && len(m.crowd) > 0; n-- { // once around: who has to wait again comes last
		c := m.crowd[0]
		overdue := m.now-c.since > int64(limit)
		if !c.closed && !overdue && m.replyFits(c.needs) != nil {
			return
		}
		m.crowd[0] = nil
		if m.crowd = m.crowd[1:]; len(m.crowd) == 0 {
			m.crowd = nil
		}
		if c.closed {
			m.crowdGone--
			continue
		}
		c.crowded = false
		if overdue {
			m.Refuse(c, m.buffersFull())
			continue
		}
		m.touch(c) // it may be read from again
		m.Receive(c, nil)
	}
}
