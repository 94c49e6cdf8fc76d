// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gloopresence decides what the end of a connection means on gloo's wire, without I/O, goroutines or a clock.
//
// PyTorch ranks send no goodbye: a process that finished its program and one that was killed look the same. A
// collective often does not communicate with the rank that is lost, so a death would go unnoticed for as long as another
// rank is late. But most collectives finish on no rank before all ranks have entered them. If such a collective runs here
// and a rank is lost, there are two cases. Either that rank died before the end, and the collective never finishes; or it
// saw the end, so all others are in it, and it finishes here as fast as messages travel. So after a short time in which
// no byte has moved, the rank counts as dead.
//
// Go ranks send a goodbye on this wire, with the number of collectives they took part in, or the reason why they gave up. For them
// the answer is exact and immediate.
package gloopresence

import (
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// Grace is how long nothing may move after the connection to a rank has ended without a notice, while a collective runs that needs it.
const Grace = 600 * time.Millisecond

// PollInterval is how often a driver polls while a rank is suspected.
const PollInterval = Grace / 12

// Collective is one that runs on this rank. It belongs to the goroutine that runs it.
type Collective struct {
	Kind collective.Kind
	Root int
	Tag  uint32
	Set  *transport.Set // its ops
}

// effect is something that the driver must do: fail the set of a collective with Err, or report a loss to the group.
type effect struct {
	Collective *Collective
	Err        error
	Loss       *transport.Loss
}

// End is how the connection to a rank has ended without a shutdown message.
type End struct {
	Rank    int
	Seen    time.Duration // when
	Age     time.Duration // for how long the connection had ended by then, as far as known
	Undated bool          // nothing is known of Age
	Order   int           // connections with lower orders have ended before; 0: unknown
	Certain bool          // the rank would have sent a goodbye
	Err     error
}

// outcome is what is known about a rank.
type outcome struct {
	how     transport.How
	gone    bool
	seen    time.Duration
	at      time.Duration // when its connection ended, or that was seen
	undated bool          // at is only a copy of seen
	order   int           // of its connection, 0 if unknown
	tags    uint32        // of a rank that left: the collectives that it took part in have lower tags
	err     error
}

// before reports whether f is the end that came first. Connections are not read in the order in which they ended, and the time
// of a reset is not known: orders are more certain than times.
func (f *outcome) before(o *outcome) bool {
	if f.order > 0 && o.order > 0 {
		return f.order < o.order
	}
	return f.at < o.at
}

// soonAfter reports whether f may be a consequence of o. When the time of f is not known, it counts when the two were seen: if this
// process did not run in between, o may look much older than f.
func (f *outcome) soonAfter(o *outcome) bool {
	if f.undated {
		return f.seen-o.seen <= Grace
	}
	return f.at-o.at <= Grace
}

// Machine tracks which ranks are present and what runs. Times are since any fixed moment. It is not safe for concurrent use.
type Machine struct {
	rank      int
	outcomes  []outcome
	running   []*Collective
	done      uint32 // tags of collectives that ended well here are lower
	moved     time.Duration
	polled    time.Duration
	abandoned error // why the group is abandoned, since another Go rank has done so

	// Effects are what the calls since the last reset ask for.
	Effects []effect
}

// New returns the machine of one rank.
func New(rank, size int) *Machine { return &Machine{rank: rank, outcomes: make([]outcome, size)} }

// Done is the number that a goodbye carries.
func (m *Machine) Done() uint32 { return m.done }

// Reason is why the group cannot continue: why a Go rank has abandoned it, or the first death. It is nil if there is none.
func (m *Machine) Reason() error {
	if m.abandoned != nil {
		return m.abandoned
	}
	var first *outcome
	for r := range m.outcomes {
		if f := &m.outcomes[r]; f.gone && f.how == transport.Died && (first == nil || f.before(first)) {
			first = f
		}
	}
	if first == nil {
		return nil
	}
	return first.err
}

// Gone reports whether a rank is known to be lost.
func (m *Machine) Gone(rank int) bool { return m.outcomes[rank].gone }

// Begin records that a collective starts here.
func (m *Machine) Begin(c *Collective) {
	m.running = append(m.running, c)
	if m.abandoned != nil {
		m.end(c, m.abandoned)
		return
	}
	var first *outcome
	for r := range m.outcomes {
		if f := &m.outcomes[r]; f.gone && m.misses(c, r, f) && (first == nil || f.before(first)) {
			first = f
		}
	}
	if first != nil {
		m.end(c, first.err)
	}
}

// misses reports whether c, which starts here, can never end because rank r is lost already.
func (m *Machine) misses(c *Collective, r int, f *outcome) bool {
	switch f.how {
	case transport.Died:
		return true
	case transport.Left:
		return c.Tag >= f.tags && endsWithAll(c, r)
	case transport.Ended:
		return endsWithAll(c, r) // it would have needed this rank
	}
	return false
}

// End records that a collective is over.
func (m *Machine) End(c *Collective, ok bool) {
	for i, r := range m.running {
		if r == c {
			m.running = append(m.running[:i], m.running[i+1:]...)
			break
		}
	}
	if ok && c.Tag >= m.done {
		m.done = c.Tag + 1
	}
}

// Moved records that bytes of collectives have arrived since the last call.
func (m *Machine) Moved(now time.Duration) { m.moved = max(m.moved, now) }

// Ended records that the connection to a rank has ended without a shutdown message.
func (m *Machine) Ended(e *End) {
	f := &m.outcomes[e.Rank]
	if f.gone {
		return
	}
	*f = outcome{gone: true, how: transport.Ended, seen: e.Seen, at: e.Seen - e.Age, undated: e.Undated, order: e.Order, err: e.Err}
	if e.Certain {
		f.how = transport.Died
	}
	m.report(e.Rank)
	if e.Certain {
		m.endAll(e.Err)
	}
}

// Left records a goodbye: the rank took part in all collectives with a tag below tags, and in no other.
func (m *Machine) Left(now time.Duration, rank int, tags uint32, err error) {
	f := &m.outcomes[rank]
	if f.gone {
		return
	}
	*f = outcome{gone: true, how: transport.Left, seen: now, at: now, tags: tags, err: err}
	m.report(rank)
	for _, c := range m.running {
		if c.Tag >= tags && endsWithAll(c, rank) {
			m.end(c, err)
		}
	}
}

// Abandoned records that a Go rank has abandoned the group, with the rank that it found dead, or less than 0.
func (m *Machine) Abandoned(now time.Duration, dead int, err error) {
	if m.abandoned == nil {
		m.abandoned = err
	}
	if dead >= 0 && dead < len(m.outcomes) && dead != m.rank {
		if f := &m.outcomes[dead]; !f.gone || f.how == transport.Ended {
			if !f.gone {
				f.seen, f.at = now, now
			}
			f.gone, f.how, f.err = true, transport.Died, err
			m.report(dead)
		}
	}
	m.endAll(m.abandoned)
}

// ClosedBecause records that rank from, a Go rank, closes the group because of err, with the rank that it found dead, or less than 0. A
// death that this rank has seen itself counts more. An error in which the other rank blames itself, or this rank, cannot be
// passed on: then it has just left, with the error left, and may have missed any collective.
func (m *Machine) ClosedBecause(now time.Duration, from, dead int, err, left error) {
	if dead == from || dead == m.rank {
		m.Left(now, from, 0, left)
		return
	}
	m.abandoned = m.Reason()
	m.Abandoned(now, dead, err)
}

// SuspectDeadline reports when a rank whose connection ended without a notice counts as dead if nothing moves until
// then, and whether there is one at all that a collective needs.
func (m *Machine) SuspectDeadline() (at time.Duration, doubt bool) {
	for r := range m.outcomes {
		f := &m.outcomes[r]
		if !f.gone || f.how != transport.Ended {
			continue
		}
		for _, c := range m.running {
			if endsWithAll(c, r) {
				return max(f.seen, m.moved) + Grace, true
			}
		}
	}
	return 0, false
}

// Poll is Tick for a driver that polls every [PollInterval]. A late poll means that the driver did not run meanwhile, and what has
// arrived may not have been read: that time does not count.
func (m *Machine) Poll(now time.Duration) {
	if at, doubt := m.SuspectDeadline(); doubt {
		quiet := at - Grace
		if late := now - max(quiet, m.polled) - 2*PollInterval; late > 0 {
			m.moved = quiet + late
		}
	}
	m.polled = now
	m.Tick(now)
}

// Tick declares a suspect dead whose deadline has passed.
func (m *Machine) Tick(now time.Duration) {
	at, doubt := m.SuspectDeadline()
	if !doubt || now < at {
		return
	}
	// The one that was lost first is the cause; others may have closed their connections because of it.
	dead := -1
	for r := range m.outcomes {
		f := &m.outcomes[r]
		if f.gone && f.how == transport.Ended && (dead < 0 || f.before(&m.outcomes[dead])) && m.needed(r) {
			dead = r
		}
	}
	f := &m.outcomes[dead]
	f.how = transport.Died
	m.report(dead)
	m.endAll(f.err)
}

func (m *Machine) needed(rank int) bool {
	for _, c := range m.running {
		if endsWithAll(c, rank) {
			return true
		}
	}
	return false
}

// Blame returns the error to give to a collective or a message that failed because of rank: that of the rank that was lost first, if
// another was within the last moment, or a collective runs that needs it. A rank that gives up because of a death closes its
// connections too, some time after it, which can be long on a busy machine. As long as a collective waits for a lost rank, a rank that ends
// may have followed it. But one that sent a goodbye has not given up, and only a death that is certain is a better reason: a rank
// that just ended may have finished.
func (m *Machine) Blame(rank int, err error) error {
	if m.abandoned != nil {
		return m.abandoned
	}
	if rank < 0 || rank >= len(m.outcomes) || !m.outcomes[rank].gone {
		return err
	}
	f := &m.outcomes[rank]
	first := f
	for r := range m.outcomes {
		o := &m.outcomes[r]
		if r == rank || !o.gone || !o.before(first) || !f.soonAfter(o) && !m.needed(r) {
			continue
		}
		if o.how == transport.Died || o.how == transport.Ended && f.how != transport.Left {
			first = o
		}
	}
	if first == f {
		return err
	}
	return first.err
}

func (m *Machine) report(rank int) {
	f := &m.outcomes[rank]
	m.Effects = append(m.Effects, effect{Loss: &transport.Loss{Rank: rank, How: f.how, Err: f.err}})
}

func (m *Machine) end(c *Collective, err error) {
	m.Effects = append(m.Effects, effect{Collective: c, Err: err})
}

func (m *Machine) endAll(err error) {
	for _, c := range m.running {
		m.end(c, err)
	}
}

// endsWithAll reports whether a collective ends on rank only after all ranks have entered it.
func endsWithAll(c *Collective, rank int) bool {
	switch c.Kind {
	case collective.AllReduce, collective.AllGather, collective.AllGatherV, collective.ReduceScatter, collective.AllToAll,
		collective.Barrier:
		return true
	case collective.Gather, collective.Scatter, collective.Reduce:
		return rank == c.Root
	case collective.Broadcast: // ends at each rank when those below it have their data
	}
	return false
}
