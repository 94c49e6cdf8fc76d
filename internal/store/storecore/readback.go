// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"slices"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

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
