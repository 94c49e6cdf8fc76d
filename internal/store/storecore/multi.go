// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file is the requests for several keys at once.

func (m *Machine) multiSet(c *Conn, r *wire.Request) error {
	// Everything that could fail is looked at first: either all pairs are stored or none.
	for list := r.List; !list.Empty(); list.Next() {
		if err := reserved(list.Next()); err != nil {
			return err
		}
	}
	if err := m.room(r.List.Size() + r.List.Count*keytable.EntryCost); err != nil {
		return err
	}
	for list := r.List; !list.Empty(); {
		key, value := list.Next(), list.Next()
		m.turn.work++
		e := m.table.Find(key)
		if e == nil {
			m.table.Insert(keytable.Pair(key, value), len(key))
			m.waits.created(key)
			m.notify(wire.KeyCreated, key, nil, value)
			continue
		}
		m.notify(wire.KeyUpdated, key, e.Value(), value)
		m.table.Set(e, value)
	}
	m.wake() // only now, when all of them are there: who waits for several must see all or nothing
	m.ack(c, r.ID)
	return nil
}

func (m *Machine) multiGet(c *Conn, r *wire.Request) error {
	values := m.measure(r.List)
	if values.missing && c.dialect == wire.Native {
		return m.open(c, r, waitMultiGet)
	}
	if err := m.mayReply(values.size, values.copied); err != nil {
		return err
	}
	m.sendValues(c, r.ID, r.List, values.copied)
	return nil
}

// peek is MULTI_GET as clients of PyTorch know it: what is not there is empty.
func (m *Machine) peek(c *Conn, r *wire.Request) error {
	values := m.measure(r.List)
	if err := m.mayReply(values.size, values.copied); err != nil {
		return err
	}
	m.sendValues(c, r.ID, r.List, values.copied)
	return nil
}

// extent is what the values of keys take in a reply.
type extent struct {
	size    int  // bytes
	copied  int  // of these, those that are copied into it
	missing bool // one of the keys is not there
}

func (m *Machine) measure(list wire.List) (x extent) {
	for !list.Empty() {
		m.turn.work++
		x.size += 8
		x.copied += 8
		if e := m.table.Find(list.Next()); e != nil {
			x.size += len(e.Value())
			x.copied += copiedSize(e.Value())
		} else {
			x.missing = true
		}
	}
	return x
}

// sendValues replies with the values of keys, of which copied bytes are copied.
func (m *Machine) sendValues(c *Conn, id uint32, list wire.List, copied int) {
	empty := list.Empty()
	start := m.beginLarge(c, id, copied)
	for !list.Empty() {
		key := list.Next()
		if e := m.table.Find(key); e != nil {
			m.noteRead(c, key)
			c.out.appendValue(e.Value(), e.Data())
		} else {
			c.out.appendValue(nil, nil)
		}
	}
	if !empty || c.dialect == wire.Native {
		m.end(c, start)
	}
}
