// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

// roster is the open connections, and which of them the driver has to look at.
type roster struct {
	all        []*Conn
	loops      []loopConns
	dirtyLoops uint64 // a bit for each loop that has dirty connections
}

// loopConns is a part of the driver with connections of its own: one of several event loops.
type loopConns struct {
	dirty     []*Conn
	lastDirty []*Conn // the other of two buffers: one is walked while the next is filled
	conns     int
}

// place is where a connection stands in the roster.
type place struct {
	pos   int // among all
	loop  int
	dirty bool
}

func newRoster(n int) roster { return roster{loops: make([]loopConns, max(n, 1))} }

func (r *roster) add(c *Conn, loop int) {
	c.place = place{pos: len(r.all), loop: loop}
	r.all = append(r.all, c)
	r.loops[loop].conns++
}

// remove takes c off the list of all. It may still be dirty.
func (r *roster) remove(c *Conn) {
	r.loops[c.place.loop].conns--
	last := len(r.all) - 1
	moved := r.all[last]
	r.all[c.place.pos], moved.place.pos = moved, c.place.pos
	r.all[last] = nil
	r.all = r.all[:last]
}

// touch puts c on the list of connections that the driver must look at.
func (r *roster) touch(c *Conn) {
	if !c.place.dirty {
		c.place.dirty = true
		h := &r.loops[c.place.loop]
		h.dirty = append(h.dirty, c)
		r.dirtyLoops |= 1 << c.place.loop
	}
}

// Conns returns the number of open connections.
func (m *Machine) Conns() int { return len(m.conns.all) }

// Peers returns the addresses of open connections, at most as many as asked for.
func (m *Machine) Peers(most int) []string {
	peers := make([]string, 0, min(most, len(m.conns.all)))
	for _, c := range m.conns.all[:cap(peers)] {
		peers = append(peers, c.Peer)
	}
	return peers
}

// Quietest returns the loop with the fewest connections.
func (m *Machine) Quietest() int {
	least := 0
	for i := range m.conns.loops {
		if m.conns.loops[i].conns < m.conns.loops[least].conns {
			least = i
		}
	}
	return least
}

// Dirty returns the connections of the first loop that have something to send or are to be closed, and forgets them. The
// slice is valid until the call after the next one.
func (m *Machine) Dirty() []*Conn { return m.DirtyAt(0) }

// DirtyAt is Dirty for a loop. No connection is in the list twice, so that is bounded by their number.
func (m *Machine) DirtyAt(loop int) []*Conn {
	h := &m.conns.loops[loop]
	d := h.dirty
	clear(h.lastDirty) // some may be closed by now
	h.dirty, h.lastDirty = h.lastDirty[:0], d
	m.conns.dirtyLoops &^= 1 << loop
	for _, c := range d {
		c.place.dirty = false
	}
	return d
}

// DirtyLoops returns a bit for each loop that has dirty connections.
func (m *Machine) DirtyLoops() uint64 { return m.conns.dirtyLoops }

// Touch puts c among the dirty ones, for a driver that has something to do with it.
func (m *Machine) Touch(c *Conn) { m.conns.touch(c) }
