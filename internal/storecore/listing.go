// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"

	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// listing is the answer to a LIST_KEYS of many keys while it is being made, a part in each turn. It has the keys of the moment
// at which it was asked for: those that came later say so, and the table tells it of those that go meanwhile. Its client is not read
// from until it has its answer.
type listing struct {
	conn  *Conn
	table *table
	out   []byte
	at    int    // entries below are done with
	end   int    // those from here on are newer
	turn  uint64 // among all listings of the table: in between, those that came in it or later are newer, too
}

// listKeys answers LIST_KEYS.
func (m *Machine) listKeys(c *Conn, r *wire.Request) error {
	size := 8 + 8*m.table.count + m.table.keyBytes
	if err := m.replyFits(size); err != nil {
		return err // without a look at the keys, however often it is asked
	}
	m.table.begun++
	l := &listing{conn: c, table: m.table, end: m.table.fresh, turn: m.table.begun, out: make([]byte, 0, size+wire.FrameHeader+1)}
	if c.dialect == wire.Native {
		l.out = append(wire.BeginFrame(l.out, r.ID), 0)
	}
	l.out = wire.AppendInt(l.out, int64(m.table.count))
	c.listing = l
	if m.advance(l, m.turn.work+sliceWork); l.at == l.end {
		m.finishListing(l)
		return nil
	}
	m.table.listings = append(m.table.listings, l)
	m.listings = append(m.listings, l)
	m.settle(c)
	return nil
}

// advance goes on with a listing up to an amount of work.
func (m *Machine) advance(l *listing, end uint64) {
	for l.at < l.end && m.turn.work < end {
		n, looked := l.table.used.Next(l.at)
		m.turn.work += uint64(looked) //nolint:gosec // not negative
		if l.at = min(n, l.end); l.at == l.end {
			return
		}
		if e := l.table.at(uint32(n)); e.born < l.turn { //nolint:gosec // the number of an entry
			l.list(e)
			m.turn.copied(int(e.keyLen))
		}
		l.at++
	}
}

func (l *listing) list(e *entry) { l.out = wire.AppendBytes(l.out, e.key()) }

// went is called before entry n is not used any more.
func (l *listing) went(n uint32, e *entry) {
	if int(n) >= l.at && int(n) < l.end && e.born < l.turn {
		l.list(e)
	}
}

// resumeListings goes on with all listings, each as far as a client's turn allows.
func (m *Machine) resumeListings() {
	end := m.turn.work + heavyWork
	for _, l := range slices.Clone(m.listings[:min(len(m.listings), heavyWork/sliceWork)]) {
		if m.turn.work >= end {
			return
		}
		if l.conn.listing != l {
			continue // its client was cut for another's sake
		}
		m.forgetListing(l)
		if m.advance(l, m.turn.work+sliceWork); l.at < l.end {
			l.table.listings = append(l.table.listings, l)
			m.listings = append(m.listings, l) // behind the others
			continue
		}
		m.finishListing(l)
		m.conns.touch(l.conn) // it may be read from again
		m.Receive(l.conn, nil)
	}
}

// finishListing sends a listing that is complete.
func (m *Machine) finishListing(l *listing) {
	c := l.conn
	c.listing = nil
	if c.dialect == wire.Native {
		l.out = wire.EndFrame(l.out, 0)
	}
	c.out.begin(m.clock.patience)
	c.out.refer(l.out, l.out)
	m.conns.touch(c)
	m.settle(c)
	m.boundOutput(c)
}

// forgetListing takes a listing off the lists that it is on.
func (m *Machine) forgetListing(l *listing) {
	is := func(o *listing) bool { return o == l }
	m.listings = slices.DeleteFunc(m.listings, is)
	l.table.listings = slices.DeleteFunc(l.table.listings, is)
}

// dropListing ends the listing of a client that is closed.
func (m *Machine) dropListing(c *Conn) {
	if c.listing != nil {
		m.forgetListing(c.listing)
		c.listing = nil
	}
}
