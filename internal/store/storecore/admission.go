// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"cmp"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
)

// shares are the parts of the memory limit. Each has rules of its own for when it is full, so that what fills one of them
// does not stop others:
//
//   - data, half of it: keys, values, queues. A request that does not fit is refused.
//   - out, a quarter: replies that clients have not read yet. A reply that does not fit waits (admission_replies.go).
//   - in, an eighth: requests that are not all there yet. Large ones are read in turn (admission_requests.go).
//   - waits, an eighth: open waits, watches, claims. The client with the most of them is cut.
//
// While a client waits for out or in, those that read or send too slowly are cut: slow is relative, and no client is slow as
// long as there is room for all. The limit itself holds always: when the parts together are over it, the client that holds the
// most for the longest time is cut.
type shares struct {
	data, out, in, waits int64
}

func divide(memory int64) shares {
	return shares{data: memory / 2, out: memory / 4, in: memory / 8, waits: memory / 8}
}

// admission decides who gets memory, who waits for it, and who is cut for it. This file has the shares and what happens when one is full,
// admission_requests.go the requests that wait until there is room for them, and admission_replies.go the replies that do, in the order of
// their hosts' turns. What data takes is known to table and queues.
type admission struct {
	shares   shares
	in       int64 // requests that are not all there
	out      int64 // replies that are not sent
	waits    int64 // waits, watches, claims
	logged   int64 // commands that are under way to the log
	promised int64 // the replies that they may have
	unsent   int64 // callbacks that not all have been sent yet
	reliefAt int64 // when to look for slow clients next

	replies  fairQueue[*Conn] // who waits for room for a reply
	requests fairQueue[*Conn] // who waits for room for a request, and is not read from
	granted  int64            // bytes of the room for requests
	active   int              // how many have some of it and are read from
}

func newAdmission(memory int64) admission {
	closed := func(c *Conn) bool { return c.closed }
	return admission{shares: divide(memory), replies: newFairQueue(closed), requests: newFairQueue(closed)}
}

const (
	// readerPause and senderPause are how long a client may make no progress while others wait for its memory, and
	// leastPause what is left of that when they have waited long; readerRate and senderRate how many bytes a second it has
	// to take or send when it is given slowStartTime more. All of them are measured by clock.counted.
	readerPause = int64(5 * time.Second)
	senderPause = int64(2 * time.Second)
	leastPause  = int64(time.Second)
	readerRate  = 256 << 10
	senderRate  = 64 << 10
	// reliefPause is how often slow clients are looked for.
	reliefPause = int64(100 * time.Millisecond)
)

// memory is what counts against the limit.
func (m *Machine) memory() int64 {
	return m.table.Bytes() + m.queues.bytes + m.sessions.bytes +
		m.admission.out + m.admission.in + m.admission.waits + m.admission.unsent + m.admission.logged
}

// room reports an error when n more bytes of keys and values would be over their share.
func (m *Machine) room(n int) error {
	data := m.table.Bytes() + m.queues.bytes
	if data+int64(n) <= m.admission.shares.data || m.applies() {
		return nil
	}
	return cohort.Newf("tcpstore: serve", cohort.Exhausted,
		"keys, values and queues take %d of %d bytes: delete some or raise the memory limit",
		data, m.admission.shares.data)
}

// settle brings the sums of all buffers up to date.
func (m *Machine) settle(c *Conn) {
	in, out := cap(c.in.buf)+c.in.lent, c.out.Memory()
	if c.listing != nil {
		out += cap(c.listing.out)
	}
	m.admission.in += int64(in - c.in.counted)
	m.admission.out += int64(out - c.out.counted)
	c.in.counted, c.out.counted = in, out
}

// slowReader reports whether c leaves its replies unread.
func (m *Machine) slowReader(c *Conn) bool {
	owed := int64(c.Owed())
	pause := readerPause
	if !m.admission.replies.Empty() { // the longer others wait, the less
		pause = max(pause-(m.clock.counted-m.admission.replies.Since()), leastPause)
	}
	return owed > 0 && c.out.pace.Slow(m.clock.counted, pause, owed, readerRate)
}

// relieve cuts those that are too slow while others wait for memory. It returns whether it looked: it does so only now
// and then.
func (m *Machine) relieve() bool {
	if m.clock.counted < m.admission.reliefAt {
		return false
	}
	m.admission.reliefAt = m.clock.counted + reliefPause
	for i := len(m.conns.all) - 1; i >= 0; i-- { // a connection that is cut is replaced by the last one
		m.turn.work++
		switch c := m.conns.all[i]; {
		case m.slowReader(c):
			m.Refuse(c, cohort.Newf("tcpstore: serve", cohort.Exhausted,
				"the client reads too slowly: %d bytes wait for it, and others need the memory", c.Owed()))
		case m.slowSender(c):
			m.Refuse(c, cohort.Newf("tcpstore: serve", cohort.Exhausted,
				"the client is too slow with its request: %d bytes of it are here, and others need the memory", len(c.in.buf)))
		}
		i = min(i, len(m.conns.all))
	}
	return true
}

// enforce makes sure that n more bytes are within the limit, whatever it takes: those that hold the most bytes for the
// longest time are cut. It frees more than needed, so that it is not called again for every byte.
func (m *Machine) enforce(n int) {
	if m.memory()+int64(n) <= m.config.Limits.Memory {
		return
	}
	type holderID struct {
		conn  *Conn
		blame float64
	}
	var holders []holderID
	for _, c := range m.conns.all {
		m.turn.work++
		blame := 0.0
		if len(c.in.buf) > 0 {
			blame += c.in.pace.Blame(m.clock.counted, cap(c.in.buf))
		}
		if c.Owed() > 0 {
			blame += c.out.pace.Blame(m.clock.counted, c.out.Memory())
		}
		if blame > 0 {
			holders = append(holders, holderID{c, blame})
		} else if c.in.counted+c.out.counted > 0 {
			c.in.buf, c.out.Buf = nil, nil // kept for its next request
			m.settle(c)
		}
	}
	slices.SortFunc(holders, func(a, b holderID) int { return cmp.Compare(b.blame, a.blame) })
	for _, h := range holders {
		if m.memory()+int64(n) <= m.config.Limits.Memory-m.config.Limits.Memory/16 {
			return
		}
		m.Refuse(h.conn, cohort.Newf("tcpstore: serve", cohort.Exhausted,
			"the memory limit of %d bytes is reached, and this client's unread replies and unfinished requests take %d",
			m.config.Limits.Memory, cap(h.conn.in.buf)+h.conn.out.Memory()))
	}
}

// roomToWait makes room for a wait, watch or claim of c. When there is none the client that has the most of them is cut,
// and if that is c its request is refused.
func (m *Machine) roomToWait(c *Conn, cost int64) error {
	if m.admission.waits+cost <= m.admission.shares.waits || m.applies() {
		return nil
	}
	holders := slices.DeleteFunc(slices.Clone(m.conns.all), func(o *Conn) bool { return o.holdings.bytes <= c.holdings.bytes+cost })
	m.turn.work += uint64(len(m.conns.all))
	slices.SortFunc(holders, func(a, b *Conn) int { return cmp.Compare(b.holdings.bytes, a.holdings.bytes) })
	for _, o := range holders {
		if m.admission.waits+cost <= m.admission.shares.waits-m.admission.shares.waits/8 {
			break
		}
		m.Refuse(o, cohort.Newf("tcpstore: serve", cohort.Exhausted,
			"its waits, watches and claims take %d bytes, more than those of any other client, and all of them together have %d",
			o.holdings.bytes, m.admission.shares.waits))
	}
	if m.admission.waits+cost <= m.admission.shares.waits {
		return nil
	}
	return cohort.Newf("tcpstore: serve", cohort.Exhausted,
		"waits, watches and claims of all clients take %d of %d bytes: raise the memory limit",
		m.admission.waits, m.admission.shares.waits)
}

// grow returns b with room for n bytes more. It takes little more memory than there is data.
func grow(b []byte, n int) []byte {
	need := len(b) + n
	if need <= cap(b) {
		return b
	}
	if need > keepBuffer {
		need = max(need, cap(b)+cap(b)/4)
	}
	return append(make([]byte, 0, need), b...)
}

// slowStartTime is how much time a client has beside that for its bytes.
const slowStartTime = int64(10 * time.Second)

// progress is how a client gets on.
type progress struct {
	Since int64 // when the bytes began to wait
	Moved int64 // when some of them moved last
}

// Start notes that bytes begin to wait.
func (p *progress) Start(now int64) { p.Since, p.Moved = now, now }

// Slow reports whether nothing has moved for longer than a pause, or all in all less than rate bytes a second.
func (p *progress) Slow(now, pause, bytes, rate int64) bool {
	return now-p.Moved > pause || now-p.Since > slowStartTime+bytes*int64(time.Second)/rate
}

// Blame weighs bytes by how long nothing has moved, and to a lesser part by how long they have been there: who is being
// served holds much for a short time, and a client that moves one byte now and then is not served.
func (p *progress) Blame(now int64, bytes int) float64 {
	return float64(bytes) * (1 + float64(now-p.Moved) + float64(now-p.Since)/16)
}
