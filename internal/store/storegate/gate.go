// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/ilist"
)

// gate decides what is asked of the store for the clients of a machine. Its methods are called by one goroutine at a time.
type gate struct {
	// Machine is that of the clients. It is set before the first call.
	Machine *storecore.Machine

	config Config
	link   link
	queue  []*ask          // what is not sent, in order
	shared map[string]*ask // the last ask of each kind and key that others may join
	refuse error           // why the store cannot be used
	held   []*ask          // waits for an item of a queue that another client was told of, see queueReady
	kept   int64           // what all asks take
	subs   uint32
	counts Counts
}

// Config is what a gate is made of.
type Config struct {
	// Token draws the ids and tokens of sessions.
	Token func() [wire.SessionIDSize]byte
	// Kept is how many bytes of requests may be under way before clients have to wait.
	Kept int64
}

// Counts says what a gate has done.
type Counts struct {
	// Requests are those of clients, Asked those that the store was asked, Repeated those of them that were sent again.
	Requests, Asked, Repeated uint64
	// Sessions were opened, Lost of them were not known any more when they were to be opened again.
	Sessions, Lost uint64
}

// newGate returns a gate without a connection.
func newGate(config Config) *gate {
	g := &gate{config: config, shared: map[string]*ask{}}
	g.link.asks = map[uint32]*ask{}
	g.newSession()
	return g
}

// Full implements storecore.Relay. Until the store was reached for the first time nothing is taken: it is not known which one it is.
func (g *gate) Full() bool { return g.kept >= g.config.Kept || !g.link.reached && g.refuse == nil }

// Refusal implements storecore.Relay.
func (g *gate) Refusal() error { return g.refuse }

// Counts returns what the gate has done.
func (g *gate) Counts() Counts { return g.counts }

// UnderWay is how many requests to the store have no answer, and how many wait to be sent.
func (g *gate) UnderWay() (asked, waiting int) { return len(g.link.asks), len(g.queue) }

// Ask implements storecore.Relay.
func (g *gate) Ask(t *storecore.Ticket, r *wire.Request) {
	g.counts.Requests++
	op := forClient(t.Conn.Dialect(), r)
	switch kindOf(op) {
	case sets:
		g.askSet(t, r)
	case adding:
		g.join(adding, string(r.Key), t, r.Num, nil)
	case arrival:
		if t.Conn.Dialect() == wire.Native { // each may be cancelled, and is answered for itself
			g.askPlain(t, op, r)
			return
		}
		a := g.join(arrival, string(wire.AppendInt(slices.Clone(r.Key), r.Num)), t, 0, nil)
		a.size = r.Num
		a.count++
	case reading:
		body := wire.AppendRequest(nil, op, r)
		g.join(reading, string(body), t, 0, body)
	case plain:
		g.askPlain(t, op, r)
	}
}

func (g *gate) askPlain(t *storecore.Ticket, op wire.Op, r *wire.Request) {
	a := &ask{kind: plain, op: op, body: wire.AppendRequest(nil, op, r), shares: []share{{ticket: t}}}
	if op == wire.CompareSet && isClaim(r.Key) {
		if t.Conn.Sub() == 0 {
			g.subs++
			t.Conn.SetSub(g.subs)
		}
		a.sub = t.Conn.Sub()
	}
	t.Owner = a
	g.charge(a, int64(cap(a.body))+askCost)
	g.queue = append(g.queue, a)
}

func isClaim(key []byte) bool {
	return len(key) >= len(wire.ClaimPrefix) && string(key[:len(wire.ClaimPrefix)]) == wire.ClaimPrefix
}

// join adds a client to an ask that is not sent yet, or makes one. One that is sent may have been answered from a time before the
// client asked; what comes meanwhile goes out after it. A client whose writes are under way may not overtake them by joining.
func (g *gate) join(k kind, key string, t *storecore.Ticket, delta int64, body []byte) *ask {
	table := string(rune('0'+k)) + key
	a := g.shared[table]
	if a != nil && k == arrival && a.state != queued {
		a = nil // the answer to that one may depend on this one
	}
	switch {
	case a != nil && a.state != queued && a.next != nil:
		a = a.next
	case a != nil && a.state != queued:
		a.next = g.newAsk(k, key, body)
		a = a.next
	case a == nil || !t.InOrder():
		a = g.newAsk(k, key, body)
		if len(key) <= maxShared && (g.shared[table] == nil || g.shared[table].next == nil) {
			g.shared[table] = a
		}
		g.queue = append(g.queue, a)
	}
	a.shares = append(a.shares, share{t, delta})
	t.Owner = a
	g.charge(a, shareCost)
	return a
}

func (g *gate) newAsk(k kind, key string, body []byte) *ask {
	a := &ask{kind: k, key: key, body: body}
	if body != nil {
		a.op = wire.Op(body[0])
	}
	g.charge(a, int64(cap(body)+2*len(key))+askCost)
	return a
}

// askSet puts a write behind those before it if they are the last in the queue.
func (g *gate) askSet(t *storecore.Ticket, r *wire.Request) {
	var a *ask
	if n := len(g.queue); n > 0 {
		a = g.queue[n-1]
	}
	if a == nil || a.kind != sets || len(a.keys) >= maxBatch || a.cost > maxBatchBytes || len(r.Value) > maxBatchValue ||
		len(a.values[0]) > maxBatchValue {
		a = &ask{kind: sets, op: wire.Set}
		g.charge(a, askCost)
		g.queue = append(g.queue, a)
	}
	a.keys, a.values = append(a.keys, string(r.Key)), append(a.values, slices.Clone(r.Value))
	a.shares = append(a.shares, share{ticket: t})
	t.Owner = a
	g.charge(a, int64(2*len(r.Key)+2*len(r.Value))+shareCost)
}

func (g *gate) charge(a *ask, n int64) {
	a.cost += n
	g.kept += n
}

// done forgets an ask, and sends what has come meanwhile.
func (g *gate) done(a *ask) {
	full := g.Full()
	a.state = over
	g.kept -= a.cost
	table := string(rune('0'+a.kind)) + a.key
	if g.shared[table] == a {
		delete(g.shared, table)
		if a.next != nil && len(a.next.shares) > 0 {
			g.shared[table] = a.next
		}
	}
	if next := a.next; next != nil {
		if a.next = nil; len(next.shares) > 0 {
			g.queue = append(g.queue, next)
		} else {
			g.kept -= next.cost
		}
	}
	if full && !g.Full() {
		g.Machine.Unstall()
	}
}

// Cancel implements storecore.Relay.
func (g *gate) Cancel(t *storecore.Ticket) {
	a, _ := t.Owner.(*ask)
	if a == nil || a.state == over || a.numbered() && !a.lasting() {
		return // it is answered soon
	}
	if a.op == wire.QueuePop && t.Open() { // an item may be on its way: the store says what has become of it
		g.giveUp(a)
		return
	}
	a.shares = slices.DeleteFunc(a.shares, func(s share) bool { return s.ticket == t })
	if t.Open() {
		g.Machine.Answer(t, byte(cohort.Canceled), []byte("tcpstore: wait: cancelled: at the client's request"))
	}
	if len(a.shares) == 0 {
		g.giveUp(a)
	}
}

// giveUp ends an ask that waits. An arrival that is not sent yet is sent all the same: it counts.
func (g *gate) giveUp(a *ask) {
	switch {
	case a.state == sent:
		a.state = unwanted
		g.cancelSent(a)
	case a.kind == reading && a.state == queued:
		g.queue = slices.DeleteFunc(g.queue, func(o *ask) bool { return o == a })
		if i := slices.Index(g.held, a); i >= 0 {
			g.held = slices.Delete(g.held, i, i+1)
		}
		if before := g.shared["1"+a.key]; before == nil || before.next != a { // else it goes when that is answered
			g.done(a)
		}
	}
}

// Left implements storecore.Relay.
func (g *gate) Left(c *storecore.Conn) {
	if sub := c.Sub(); sub != 0 {
		g.link.left = append(g.link.left, sub)
	}
	g.release()
}

var _ storecore.Relay = (*gate)(nil)

// link is the connection to the store, and the session with it.
type link struct {
	phase      phase
	reached    bool // the store was reached at least once
	out        []byte
	lastID     uint32
	asks       map[uint32]*ask // under way, by their ids
	sent       ilist.List[ask] // the same, in order
	quick      ilist.List[ask]
	id, token  [wire.SessionIDSize]byte
	generation uint64
	opened     bool // the store has answered that it is open
	seq        uint64
	identity   []byte
	other      bool // the store is another one than before
	left       []uint32
	helloID    uint32
	sessionID  uint32
	pingID     uint32
	fault      error  // why the connection must be replaced
	moved      string // which server to ask instead
}

type phase uint8

const (
	down     phase = iota
	greeting       // hello and session are under way
	ready
)
