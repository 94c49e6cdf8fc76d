// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
)

// Journal puts the commands of a machine into an order that is not lost: a log in a folder (internal/store/storejournal), or the log of
// several members. A server without one applies changes at once.
//
// The server proposes commands; the journal says through its Sink what became of them, from a goroutine of its own. Clients are answered
// then. Commands come back as entries, in the order of the log, each with the Command that was proposed here, if it was. An entry of
// another process, or one that was in doubt, has none.
type Journal interface {
	// Begin is called once, before anything is proposed. What was committed before it must have been applied to the machine already
	// (storecore's Restore and Replay) or comes through sink.
	Begin(sink Sink)
	// Propose takes commands in their order. It is called under the lock of the server: it must neither wait nor call the sink, and only
	// puts them where a goroutine finds them. Commands may be proposed while earlier ones are under way; what has gathered should become
	// one batch. Each comes back once, by Committed or by Aborted. Commands of one connection must not be committed in another order.
	Propose(commands []*storecore.Command)
	// Read is called, like Propose, when requests wait to read (storecore's Config.Barrier). The journal calls sink.Confirm with the number
	// of the round, or a later one, once everything that was acknowledged anywhere before the call has been given to Committed.
	Read(round uint64)
	// End stops the journal after the last call of Propose, when the server does not serve any more. It returns when no goroutine of
	// the journal calls the sink any more. Commands under way may be given up.
	End()
}

// Sink is the server as the journal sees it. It may be called from one goroutine at a time.
type Sink interface {
	// Committed takes entries in the order of the log. They are applied in steps; Do, in a later call, sees how far that is.
	Committed(entries []storecore.Entry)
	// Aborted takes commands, in their order, that are not and will not be in the log, or of which that is not known. Their clients are
	// told why. which is called under the lock of the server, so it can add all that was proposed since: a client of PyTorch must not see
	// a later one of its commands done.
	Aborted(which func() []*storecore.Command, reason error)
	// Confirm lets requests read, see Journal.Read. With an error their clients are cut.
	Confirm(round uint64, err error)
	// Do runs fn while the machine stands still. It returns false when the server has ended.
	Do(fn func(*Core)) bool
}

// sink is how a server takes what its journal says.
type sink struct{ server *Server }

func (s sink) Do(fn func(*Core)) bool {
	<-s.server.ready
	return s.server.driver != nil && s.server.Do(fn)
}

func (s sink) Committed(entries []storecore.Entry) {
	s.Do(func(c *Core) { c.Machine.Commit(entries) })
}

func (s sink) Aborted(which func() []*storecore.Command, reason error) {
	s.Do(func(c *Core) {
		c.report.warn("changes refused", cohort.CodeOf(reason).String(), reasonAttr(reason))
		c.Machine.Abort(which(), reason)
	})
}

func (s sink) Confirm(round uint64, err error) {
	s.Do(func(c *Core) { c.Machine.Confirm(round, err) })
}

// propose gives the journal what a step has brought. If there is one, a driver calls it at the end of each step.
func (c *Core) propose() {
	if commands := c.Machine.Commands(); len(commands) > 0 {
		c.journal.Propose(commands)
	}
	if round := c.Machine.Reads(); round != 0 {
		c.journal.Read(round)
	}
}

// Clear empties the store at the wish of this process and returns how many keys and queues there were.
func (s *Server) Clear() (keys int, err error) {
	done := make(chan error, 1)
	ran := s.Do(func(c *Core) {
		if c.journal == nil {
			keys = c.Clear()
			done <- nil
			return
		}
		c.Machine.ProposeClear(func(n int, err error) {
			if keys = n; err == nil {
				c.cleared(n)
			}
			done <- err
		})
	})
	if !ran {
		return 0, nil
	}
	select {
	case err = <-done:
		return keys, err
	case <-s.ended:
		return 0, cohort.New("tcpstore: clear", cohort.Closed, "the server was closed meanwhile")
	}
}
