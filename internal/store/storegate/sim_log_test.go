// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"bytes"

	"github.com/cohort-dist/cohort/internal/store/storecore"
)

// simLog is the log of a store. What is in it outlives the store; what is on its way there does not.
type simLog struct {
	entries   []storecore.Entry
	gathered  []*storecore.Command
	committed int // of the entries, how many the store was told of
	image     []byte
	imageAt   int
	restarts  int
}

// keepLog gives the store a log, before it is used.
func (s *sim) keepLog() {
	s.log = &simLog{}
	s.restart()
}

// writeLog logs some of what the store has brought, and tells it of some of what is logged.
func (s *sim) writeLog() {
	l := s.log
	l.gathered = append(l.gathered, s.store.Commands()...)
	n := s.r.IntN(len(l.gathered) + 1)
	for _, k := range l.gathered[:n] {
		l.entries = append(l.entries, storecore.Entry{Index: uint64(len(l.entries) + 1), Data: bytes.Clone(k.Data), Local: k})
	}
	l.gathered = l.gathered[n:]
	if n = s.r.IntN(len(l.entries) - l.committed + 1); n > 0 {
		s.store.Commit(append([]storecore.Entry(nil), l.entries[l.committed:l.committed+n]...))
		l.committed += n
	}
	if _, waiting, _ := s.store.Applied(); waiting == 0 && s.r.IntN(200) == 0 {
		l.image, l.imageAt = nil, l.committed
		i := s.store.BeginImage()
		for more := true; more; {
			var part []byte
			part, more = i.Next()
			l.image = append(l.image, part...)
		}
	}
}

// restart kills the store and makes it again from its log, or from an image and what follows that.
func (s *sim) restart() {
	l := s.log
	l.restarts++
	m := storecore.New(storecore.Config{Limits: simLimits, Logged: true, Server: uint64(l.restarts)})
	from := 0
	if l.image != nil && s.r.IntN(2) == 0 {
		from = l.imageAt
		if err := m.Restore(uint64(from), bytes.NewReader(l.image)); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, e := range l.entries[from:] {
		if err := m.Replay(storecore.Entry{Index: e.Index, Data: e.Data}); err != nil {
			s.t.Fatal(err)
		}
	}
	m.ProposeRestart()
	s.store, l.gathered, l.committed = m, nil, len(l.entries)
	for _, g := range s.gates {
		if g.late = nil; g.conn != nil {
			g.conn = nil
			g.gate.Disconnected()
		}
	}
}
