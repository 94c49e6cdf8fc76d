// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"slices"
	"strconv"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

const (
	// maxKey and maxAnswer bound what is kept of the last question of a client: longer ones are no counters or flags.
	maxKey, maxAnswer = 256, 24
	// leastAsks is how often a client asks in a row that asks again and again, and leastTime for how many nanoseconds.
	leastAsks, leastTime = 3, int64(1e9)
)

// pollWatch is the question that a client has asked last, and how often it has had the same answer in a row.
type pollWatch struct {
	key, answer []byte
	times       uint64
	since, last int64
}

// pollHint is what is known of a client that asks again and again.
type pollHint struct {
	Key   string
	Since int64 // when it began
	Asks  uint64
	// Answer is what it got each time, if that is a number: anything else may be a secret.
	Answer string
}

// Asked notes a question that changes nothing, and its answer. now is in nanoseconds.
func (p *pollWatch) Asked(now int64, key, answer []byte) {
	switch {
	case p.times > 0 && bytes.Equal(p.key, key) && bytes.Equal(p.answer, answer):
		p.times++
	case len(key) > maxKey || len(answer) > maxAnswer:
		p.times = 0
	default:
		p.key, p.answer = append(p.key[:0], key...), append(p.answer[:0], answer...)
		p.times, p.since = 1, now
	}
	p.last = now
}

// Forget notes that the client has got what it asked for, or has changed something: it gets on.
func (p *pollWatch) Forget() { p.times = 0 }

// Added notes a change of a counter, and its sum. By a change of 0 counters are read.
func (p *pollWatch) Added(now int64, key []byte, change, sum int64) {
	if change != 0 {
		p.Forget()
		return
	}
	var text [20]byte
	p.Asked(now, key, strconv.AppendInt(text[:0], sum, 10))
}

// GoesOn reports whether a client asks again and again, and has not stopped to: it is not silent for much longer than
// between two questions.
func (p *pollWatch) GoesOn(now int64) (pollHint, bool) {
	if p.times < leastAsks || now-p.since < leastTime {
		return pollHint{}, false
	}
	if between := (p.last - p.since) / int64(p.times-1); now-p.last > 2*between+leastTime { //nolint:gosec // not that many
		return pollHint{}, false
	}
	hint := pollHint{Key: string(p.key), Since: p.since, Asks: p.times}
	if _, err := strconv.ParseInt(string(p.answer), 10, 64); err == nil {
		hint.Answer = string(p.answer)
	}
	return hint, true
}

// readBack is which of the keys that a client of PyTorch has set it has then read itself. A rank of PyTorch 2.8 or later does
// that with its address when it makes a gloo group, and an earlier one never does: nothing else tells them apart. A native client
// asks by CHECK of wire.ReadBackPrefix + key. Only the last few are remembered, as hashes: what is forgotten counts as not read.
type readBack struct {
	set  uint64    // the key that was set last
	read [8]uint64 // those that were read after that
	next int
}

func (m *Machine) noteSet(c *Conn, key []byte) {
	if c.dialect != wire.Native {
		c.back.set = m.table.Hash(key)
	}
}

func (m *Machine) noteRead(c *Conn, key []byte) {
	if c.dialect == wire.Native || c.back.set == 0 || c.back.set != m.table.Hash(key) {
		return
	}
	c.back.read[c.back.next%len(c.back.read)] = c.back.set
	c.back.next++
	c.back.set = 0
}

// isReadBack reports whether a key asks for another one and that was read back.
func (m *Machine) isReadBack(c *Conn, question []byte) bool {
	if c.dialect != wire.Native || !bytes.HasPrefix(question, []byte(wire.ReadBackPrefix)) {
		return false
	}
	m.turn.work += uint64(len(m.conns.all))
	hash := m.table.Hash(question[len(wire.ReadBackPrefix):])
	return slices.ContainsFunc(m.conns.all, func(c *Conn) bool { return slices.Contains(c.back.read[:], hash) })
}
