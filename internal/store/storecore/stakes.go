// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "github.com/cohort-dist/cohort/internal/util/ilist"

// stakes is what one connection has in the store beside keys: waits, watches and claims. They share a part of the memory.
type stakes struct {
	waits   ilist.List[wait] // all open ones
	byID    map[uint32]*wait // native: the same
	nWaits  int
	watches map[string]struct{}
	claims  []string // names it holds
	bytes   int64    // of all of them
}

// add adds a wait. Those of native clients are also found by their ids.
func (s *stakes) add(w *wait, native bool) {
	s.waits.Add(&w.ofConn, w)
	s.nWaits++
	if native {
		if s.byID == nil {
			s.byID = map[uint32]*wait{}
		}
		s.byID[w.id] = w
	}
}

func (s *stakes) remove(w *wait) {
	s.waits.Remove(&w.ofConn)
	s.nWaits--
	if s.byID != nil {
		delete(s.byID, w.id)
	}
}

// stake counts bytes of a wait, watch or claim of c, or forgets them.
func (m *Machine) stake(c *Conn, bytes int64) {
	c.stakes.bytes += bytes
	m.admission.waits += bytes
}
