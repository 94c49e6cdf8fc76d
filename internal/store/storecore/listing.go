// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"

	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// listing is the answer to a LIST_KEYS of many keys while it is being made, a part in each turn. It has the keys of the moment
// at which it was asked for. Its client is not read from until it has its answer.
type listing struct {
	conn *Conn
	walk *keytable.Walk
	out  []byte
}

// listKeys answers LIST_KEYS.
func (m *Machine) listKeys(c *Conn, r *wire.Request) error {
	size := 8 + 8*m.table.Len() + m.table.KeyBytes()
	if err := m.replyFits(size); err != nil {
		return err // without a look at the keys, however often it is asked
	}
	l := &listing{conn: c, out: make([]byte, 0, size+wire.FrameHeader+1)}
	l.walk = m.table.Walk(l.list)
	if c.dialect == wire.Native {
		l.out = append(wire.BeginFrame(l.out, r.ID), 0)
	}
	l.out = wire.AppendInt(l.out, int64(m.table.Len()))
	c.listing = l
	if m.advance(l, m.turn.work+sliceWork); l.walk.Done() {
		m.finishListing(l)
		return nil
	}
	m.listings = append(m.listings, l)
	m.settle(c)
	return nil
}

// advance goes on with a listing up to an amount of work.
func (m *Machine) advance(l *listing, end uint64) {
	for !l.walk.Done() && m.turn.work < end {
		e, looked, ok := l.walk.Next()
		m.turn.work += uint64(looked) //nolint:gosec // not negative
		if ok {
			l.list(e)
			m.turn.copied(len(e.Key()))
		}
	}
}

func (l *listing) list(e *keytable.Entry) { l.out = wire.AppendBytes(l.out, e.Key()) }

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
		m.unlist(l)
		if m.advance(l, m.turn.work+sliceWork); !l.walk.Done() {
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
	l.walk.End()
	c.listing = nil
	if c.dialect == wire.Native {
		l.out = wire.EndFrame(l.out, 0, 0)
	}
	c.out.begin(m.clock.counted)
	c.out.Refer(l.out, l.out)
	m.conns.touch(c)
	m.settle(c)
	m.boundOutput(c)
}

// unlist takes a listing off the list of those that go on in the next turns.
func (m *Machine) unlist(l *listing) {
	m.listings = slices.DeleteFunc(m.listings, func(o *listing) bool { return o == l })
}

// dropListing ends the listing of a client that is closed.
func (m *Machine) dropListing(c *Conn) {
	if c.listing != nil {
		c.listing.walk.End()
		m.unlist(c.listing)
		c.listing = nil
	}
}
