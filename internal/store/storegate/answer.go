// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"encoding/binary"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file deals out the answers of the store.

// answered gives an answer to those who asked.
func (g *gate) answered(a *ask, status byte, body []byte) {
	if status == byte(cohort.Replaced) && g.link.phase == ready && g.wanted(a) {
		g.link.fault = cohort.New("gateway", cohort.Replaced, "the store was cleared by another client")
		return // the greeting over the next connection finds out which store this is now, and all learn it
	}
	if a.seq != 0 && a.lasting() && g.link.phase == ready {
		g.control(func(b []byte) []byte { return wire.AppendAcked(b, a.seq) })
	}
	g.remove(a)
	shares := a.shares
	a.shares = nil
	switch {
	case a.kind == adding && status == 0 && len(body) == 8:
		g.dealOut(shares, int64(binary.LittleEndian.Uint64(body))) //nolint:gosec // two's complement
	case a.op == wire.Await && status == 0 && len(body) == 1 && body[0] == wire.QueueReady:
		g.queueReady(a, shares)
	case a.op == wire.Clear && status == 0:
		g.cleared(shares, body)
	default:
		for _, s := range shares {
			g.Machine.Answer(s.ticket, status, body)
		}
	}
	g.done(a)
	if a.op == wire.QueuePop {
		g.release()
	}
}

func (g *gate) wanted(a *ask) bool {
	return slices.ContainsFunc(a.shares, func(s share) bool { return s.ticket.Open() })
}

// dealOut gives each its part of a sum, as if they had added one after another.
func (g *gate) dealOut(shares []share, sum int64) {
	for _, s := range shares {
		sum -= s.delta
	}
	for _, s := range shares {
		sum += s.delta
		g.Machine.Answer(s.ticket, 0, wire.AppendInt(nil, sum))
	}
}

// cleared goes on with the new store after a client has cleared it.
func (g *gate) cleared(shares []share, body []byte) {
	r, _, short, err := wire.ParseReply(wire.Native, wire.Clear, 0, body, &wire.DefaultLimits)
	if short || err != nil || len(r.Value) != wire.IdentitySize {
		g.link.fault = cohort.New("gateway", cohort.Protocol, "the store's answer to clear cannot be read")
		return
	}
	var by *storecore.Conn
	if len(shares) == 1 && shares[0].ticket.Open() {
		by = shares[0].ticket.Conn
	}
	g.link.identity = slices.Clone(r.Value)
	g.Machine.Reached(storecore.Identity(r.Value), 0, by)
	g.failQueued(byte(cohort.Replaced), []byte(replaced)) // what was asked of the store before must not reach this one
	for _, s := range shares {
		g.Machine.Answer(s.ticket, 0, body)
	}
}

// queueReady tells the oldest of those who wait that there is an item in a queue. The others would find the queue empty: they wait until
// that one has asked for something else, most likely the item, or has left, or for a while.
func (g *gate) queueReady(a *ask, shares []share) {
	g.Machine.Answer(shares[0].ticket, 0, []byte{wire.StopWaiting})
	rest := g.newAsk(reading, a.key, a.body)
	if rest.shares = shares[1:]; a.next != nil {
		rest.shares = append(rest.shares, a.next.shares...)
		a.next.shares = nil
	}
	if len(rest.shares) == 0 {
		g.kept -= rest.cost
		return
	}
	for _, s := range rest.shares {
		s.ticket.Owner = rest
	}
	g.charge(rest, int64(len(rest.shares))*shareCost)
	g.held = append(g.held, rest)
}

// release lets those ask again who wait for the items of queues.
func (g *gate) release() {
	g.queue = append(g.queue, g.held...)
	g.held = nil
}

// Tick is called several times a second.
func (g *gate) Tick() { g.release() }
