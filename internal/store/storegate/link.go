// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file is the gate's side of the connection to the store: greeting, sending, and sending again.

func (g *gate) newSession() {
	l := &g.link
	l.id, l.token, l.generation, l.seq, l.opened = g.config.Token(), g.config.Token(), 0, 0, false
	g.counts.Sessions++
}

// Connected begins to use a new connection, after the handshake of a V client.
func (g *gate) Connected() {
	l := &g.link
	l.phase, l.fault, l.moved, l.other, l.pingID = greeting, nil, "", false, 0
	l.out = wire.AppendUpgrade(l.out[:0])
	g.greet()
}

// greet asks which store this is, and opens the session again.
func (g *gate) greet() {
	l := &g.link
	l.generation++
	l.helloID = g.control(func(b []byte) []byte { return wire.AppendHello(b, l.identity) })
	ack := l.seq + 1
	for p := l.sent.First(); p != nil; p = p.Next() {
		if a := p.Of(); a.seq != 0 {
			ack = min(ack, a.seq)
		}
	}
	if !l.opened {
		ack = 0 // the store may never have seen it
	}
	l.sessionID = g.control(func(b []byte) []byte { return wire.AppendSession(b, l.id, l.token, l.generation, ack) })
}

// control sends a request of the gate's own.
func (g *gate) control(write func([]byte) []byte) uint32 {
	l := &g.link
	id := g.freeID()
	start := len(l.out)
	l.out = wire.EndFrame(write(wire.BeginFrame(l.out, id)), start, 0)
	return id
}

func (g *gate) freeID() uint32 {
	l := &g.link
	for {
		l.lastID++
		if l.asks[l.lastID] == nil && l.lastID != l.helloID && l.lastID != l.sessionID && l.lastID != l.pingID {
			return l.lastID
		}
	}
}

// Disconnected says that the connection is gone. What was under way is sent again over the next one.
func (g *gate) Disconnected() {
	g.link.phase, g.link.out = down, nil
}

// Ready reports whether the store is reached.
func (g *gate) Ready() bool { return g.link.phase == ready }

// Fault is why the connection must be replaced, and by one to which server if that is known.
func (g *gate) Fault() (moved string, err error) { return g.link.moved, g.link.fault }

// Pending reports whether Take has something to return.
func (g *gate) Pending() bool {
	l := &g.link
	return len(l.out) > 0 || l.phase == ready && (len(g.queue) > 0 || len(l.left) > 0) && g.window()
}

// window reports whether the session has room for one more number.
func (g *gate) window() bool { return g.link.seq+1-g.ack() < wire.SessionWindow-1 }

// ack is the smallest number whose answer has not come.
func (g *gate) ack() uint64 {
	if first := g.link.quick.First(); first != nil {
		return first.Of().seq
	}
	return g.link.seq + 1
}

// Take returns bytes for the store, about as many as asked for at most. They are the caller's.
func (g *gate) Take(most int) []byte {
	l := &g.link
	if l.phase == ready {
		for _, sub := range l.left {
			g.control(func(b []byte) []byte { return wire.AppendLeave(b, sub) })
		}
		l.left = nil
		n := 0
		for n < len(g.queue) && len(l.out) < most && g.window() {
			a := g.queue[n]
			g.queue[n] = nil
			n++
			g.send(a)
		}
		if g.queue = g.queue[n:]; len(g.queue) == 0 {
			g.queue = nil
		}
	}
	out := l.out
	l.out = nil
	return out
}

// send puts an ask behind the output for the first time.
func (g *gate) send(a *ask) {
	l := &g.link
	a.encode()
	a.op = wire.Op(a.body[0])
	a.state = sent
	if a.numbered() {
		l.seq++
		if a.seq = l.seq; !a.lasting() {
			l.quick.Add(&a.ofQuick, a)
		}
	}
	a.id = g.freeID()
	l.asks[a.id] = a
	l.sent.Add(&a.ofSent, a)
	g.write(a)
}

func (g *gate) write(a *ask) {
	l := &g.link
	g.counts.Asked++
	start := len(l.out)
	b := wire.BeginFrame(l.out, a.id)
	if a.seq != 0 {
		b = wire.AppendNumbered(b, a.seq, min(g.ack(), a.seq), a.sub)
	}
	l.out = wire.EndFrame(append(b, a.body...), start, 0)
}

// cancelSent tells the store that the answer to a wait is not wanted any more.
func (g *gate) cancelSent(a *ask) {
	if g.link.phase == ready {
		g.control(func(b []byte) []byte { return wire.AppendCancel(b, a.id) })
	}
}

// sendAgain sends everything that was under way, in its order.
func (g *gate) sendAgain() {
	for p := g.link.sent.First(); p != nil; {
		a := p.Of()
		p = p.Next()
		if a.state == unwanted && a.kind == reading {
			g.remove(a)
			g.done(a)
			continue
		}
		g.counts.Repeated++
		if g.write(a); a.state == unwanted {
			g.cancelSent(a)
		}
	}
}

func (g *gate) remove(a *ask) {
	l := &g.link
	delete(l.asks, a.id)
	l.sent.Remove(&a.ofSent)
	if a.seq != 0 && !a.lasting() {
		l.quick.Remove(&a.ofQuick)
	}
}

// Ping asks the store for a sign of life, unless it was asked and has not answered. It reports whether it was.
func (g *gate) Ping() bool {
	l := &g.link
	if l.phase != ready {
		return false
	}
	if l.pingID != 0 {
		return true
	}
	l.pingID = g.control(func(b []byte) []byte { return wire.AppendPing(b, wire.Native, 1) })
	return false
}

// Receive takes a frame from the store. What it holds does not change any more if it is kept.
func (g *gate) Receive(frame []byte, kept bool) {
	l := &g.link
	id, status, body := binary.LittleEndian.Uint32(frame[4:]), frame[wire.FrameHeader], frame[wire.FrameHeader+1:]
	if status == wire.StatusMoved {
		g.movedTo(body)
		return
	}
	switch a := l.asks[id]; {
	case a != nil:
		if !kept && len(body) > 1<<10 {
			body = bytes.Clone(body)
		}
		g.answered(a, status, body)
	case id == l.helloID && l.phase == greeting:
		g.helloAnswered(status, body)
	case id == l.sessionID && l.phase == greeting:
		g.sessionAnswered(status, body)
	case id == l.pingID:
		l.pingID = 0
	}
}

func (g *gate) movedTo(body []byte) {
	l := &g.link
	l.fault = cohort.New("gateway", cohort.Unavailable, "this server does not lead the store")
	if len(body) >= 16 {
		l.moved = string(body[16:])
	}
}

func (g *gate) helloAnswered(status byte, body []byte) {
	l := &g.link
	r, _, short, err := wire.ParseReply(wire.Native, wire.Hello, 0, body, &wire.DefaultLimits)
	switch {
	case status == byte(cohort.Replaced):
		l.other = true
	case status != 0 || short || err != nil || len(r.Value) != wire.IdentitySize:
		l.fault = cohort.Newf("gateway", cohort.Protocol, "the store's answer to hello has status %d", status)
	default:
		l.identity = bytes.Clone(r.Value)
		g.Machine.Reached(storecore.Identity(r.Value), int(r.Num), nil)
	}
}

func (g *gate) sessionAnswered(status byte, body []byte) {
	l := &g.link
	switch code := cohort.Code(status); {
	case code == cohort.Unavailable: // a member that does not lead, whose answer to hello may be old
		l.other, l.fault = false, cohort.New("gateway", cohort.Unavailable, string(body))
	case l.other: // hello has said so before
		l.reached = false // clients may say hello only when it is known to which store
		g.fail(cohort.Replaced, replaced, true)
		l.identity, l.other = nil, false
		g.newSession()
		g.greet()
	case code == 0 && l.fault == nil:
		l.phase, l.opened, g.refuse = ready, true, nil
		g.sendAgain()
		if !l.reached {
			l.reached = true
			g.Machine.Unstall()
		}
	case code == cohort.NotFound:
		g.counts.Lost++
		g.fail(cohort.PeerLost, "the store has forgotten the gateway's session: whether the request was applied is not known", false)
		g.newSession()
		g.greet()
	case code == cohort.Aborted: // an attempt of this gateway that came late has a higher generation
		l.fault = cohort.New("gateway", cohort.Aborted, string(body))
	default:
		l.fault = cohort.Newf("gateway", cohort.Protocol, "the store has refused the session: %s", body)
	}
}

// Refuse says that no store is there that the gate can use. All that clients want is refused until there is one.
func (g *gate) Refuse(why error) {
	g.refuse = why
	g.fail(cohort.PeerLost, "whether the request was applied is not known: "+why.Error(), false)
	g.fail(cohort.NotSupported, why.Error(), true)
	g.link.reached = false // what comes to be there is another store
	g.newSession()
	g.Machine.Unstall()
}

const replaced = "this is another store: the one before was restarted or cleared, and what this client stored or read there is gone"

// failQueued answers what was not sent yet.
func (g *gate) failQueued(status byte, why []byte) {
	for len(g.queue)+len(g.held) > 0 {
		all := slices.Concat(g.queue, g.held)
		g.queue, g.held = nil, nil
		for _, a := range all {
			shares := a.shares
			a.shares = nil
			for _, s := range shares {
				g.Machine.Answer(s.ticket, status, why)
			}
			g.done(a)
		}
	}
}

// fail answers what was under way with an error: all of it, or that which may have been applied.
func (g *gate) fail(code cohort.Code, why string, all bool) {
	for p := g.link.sent.First(); p != nil; {
		a := p.Of()
		if p = p.Next(); all || a.seq != 0 {
			g.answered(a, byte(code), []byte(why))
		}
	}
	if all {
		g.failQueued(byte(code), []byte(why))
	}
}
