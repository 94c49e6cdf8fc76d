// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// refs drives the reference machine: it owns it under one mutex, performs its effects outside of it, and keeps the values
// and the handles that belong to its ids.
type refs struct {
	a     *Agent
	begun time.Time

	mu      sync.Mutex
	m       *rrefcore.Machine
	objects map[rrefcore.ID]*object
	handles map[rrefcore.ID]*handle
	dirty   map[rrefcore.Worker]bool     // Go peers with something to be sent, and whether somebody may wait for what it brings
	lazy    map[rrefcore.Worker]struct{} // Go peers with something that can wait for company
	taken   []rrefcore.Effect            // room for what a step asks for
	closed  bool
	lent    map[uint64]*refCore // on their way from this worker to itself
	token   uint64

	kick   chan struct{} // wakes run
	later  *time.Timer   // wakes run a little later
	soon   atomic.Bool   // later is set
	leaked leakCount
}

func newRefs(a *Agent) *refs {
	return &refs{
		a: a, begun: time.Now(), m: rrefcore.New(a.id, rrefcore.Epoch(a.epoch), a.cfg.core),
		objects: map[rrefcore.ID]*object{}, handles: map[rrefcore.ID]*handle{}, dirty: map[rrefcore.Worker]bool{}, lazy: map[rrefcore.Worker]struct{}{},
		kick: make(chan struct{}, 1), later: stoppedTimer(), lent: map[uint64]*refCore{},
	}
}

// effects are what a step asks for, to be performed without the lock.
type effects struct {
	sends []rrefcore.Effect
	calls []func()
	wake  bool // something is to be sent
	later bool // something is to be sent, but can wait a little
}

// step runs fn on the machine and performs what it asks for. Flushes are left to run, unless the caller does them.
func (r *refs) step(fn func(m *rrefcore.Machine)) {
	r.mu.Lock()
	fn(r.m)
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
}

// take sorts the machine's effects. late says that what is to be sent can wait a little. Called with the lock.
func (r *refs) take(late bool) (e effects) {
	r.taken = r.m.Take(r.taken[:0])
	for i := range r.taken {
		x := &r.taken[i] // what is kept of it must be copied
		switch x.Kind {
		case rrefcore.Send:
			e.sends = append(e.sends, *x)
		case rrefcore.Flush:
			if late || x.Late {
				if _, known := r.dirty[x.To]; !known {
					r.dirty[x.To] = false
				}
				e.later = true
				continue
			}
			r.dirty[x.To] = true
			e.wake = true
		case rrefcore.Confirmed:
			if h := r.handles[x.Fork]; h != nil {
				h.settle(nil)
			}
		case rrefcore.Failed:
			if h := r.handles[x.Fork]; h != nil {
				h.settle(h.failure(x.Code))
			}
		case rrefcore.Free:
			if o := r.objects[x.ID]; o != nil {
				delete(r.objects, x.ID)
				e.calls = append(e.calls, o.freed)
			}
		case rrefcore.CancelRun:
			if o := r.objects[x.ID]; o != nil {
				e.calls = append(e.calls, func() { o.stop(dist.New("rpc: remote", dist.Canceled, "the creation was cancelled by its creator")) })
			}
		case rrefcore.Orphaned:
			if o := r.objects[x.ID]; o != nil {
				id, code := x.ID, x.Code
				e.calls = append(e.calls, func() { o.set(nil, refFailure("fetch", id, r.a.name, code, nil)) })
			}
		}
	}
	return e
}

// stepLazy is step for what need not go out at once: deletes, confirmations that an answer brings as well. It goes with
// the next frame, or a little later.
func (r *refs) stepLazy(fn func(m *rrefcore.Machine)) {
	r.mu.Lock()
	fn(r.m)
	e := r.take(true)
	r.mu.Unlock()
	r.perform(e)
}

func (r *refs) perform(e effects) {
	for _, fn := range e.calls {
		fn()
	}
	for _, x := range e.sends {
		r.enqueue(x.To, x.Msg)
	}
	if e.wake {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	} else if e.later && r.soon.CompareAndSwap(false, true) {
		r.later.Reset(controlDelay)
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// run sends what is waiting and tells the machine the time.
func (r *refs) run() {
	every := r.a.cfg.core.Heartbeat / 4
	if every <= 0 {
		every = 250 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	acks := stoppedTimer()
	defer acks.Stop()
	defer r.later.Stop()
	for {
		select {
		case <-r.kick:
		case <-r.later.C:
			r.soon.Store(false)
		case <-acks.C:
		case <-tick.C:
			r.step(func(m *rrefcore.Machine) { m.Tick(time.Since(r.begun)) })
		case <-r.a.ctx.Done():
			return
		}
		if r.flushDirty() {
			acks.Reset(ackDelay)
		}
	}
}

// controlDelay is how long deletes wait for company, ackDelay how long acknowledgements do. With controlRide messages the
// next creating call takes them along.
const (
	controlDelay = 5 * time.Millisecond
	ackDelay     = 10 * time.Millisecond
	controlRide  = 64
)

// flushDirty sends what is waiting. A mere acknowledgement is left for the next time, which it reports.
func (r *refs) flushDirty() (left bool) {
	r.mu.Lock()
	var to []rrefcore.Worker
	for w := range r.dirty {
		_, waited := r.lazy[w]
		if r.m.Unsent(w) == 0 && !waited && !r.a.leaving.Load() {
			r.lazy[w] = struct{}{}
			left = true
			continue
		}
		delete(r.dirty, w)
		delete(r.lazy, w)
		to = append(to, w)
	}
	r.mu.Unlock()
	for _, w := range to {
		p := r.a.peerByID(w)
		if p == nil {
			continue
		}
		if c := p.current(); c != nil && c.link != nil {
			r.flushSoon(p)
			continue
		}
		r.mu.Lock()
		waiting := r.m.Waiting(w)
		r.mu.Unlock()
		if waiting > 0 { // the connection brings it along
			r.a.heal(p)
		}
	}
	return left
}

// flushSoon sends the control stream's news to a peer in a goroutine of that peer: one that takes no data holds up nobody
// else's signs of life.
func (r *refs) flushSoon(p *peer) {
	p.flushes.wanted.Store(true)
	if !p.flushes.running.CompareAndSwap(false, true) {
		return
	}
	if !r.a.own(func() {
		for {
			for p.flushes.wanted.Swap(false) {
				moment.At("rpc.refs.flush")
				r.flushStream(p)
			}
			p.flushes.running.Store(false)
			if !p.flushes.wanted.Load() || !p.flushes.running.CompareAndSwap(false, true) {
				return
			}
		}
	}) {
		p.flushes.running.Store(false)
	}
}

// flushStream sends the news on the link where the stream goes.
func (r *refs) flushStream(p *peer) {
	p.flush.Lock()
	c := p.stream
	p.flush.Unlock()
	if c != nil {
		r.flushOn(p, c)
	}
}

// flushOn sends the control stream's news on a link, in order.
//
//nolint:contextcheck,nolintlint // the stream outlives whoever caused its messages
func (r *refs) flushOn(p *peer, c *conn) {
	p.flush.Lock()
	defer p.flush.Unlock()
	if p.stream != c {
		return // what went out there would be missing where the stream goes on
	}
	for {
		r.mu.Lock()
		f, ok := r.m.Frame(p.worker)
		r.mu.Unlock()
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(r.a.ctx, 10*time.Second)
		err := c.link.Send(ctx, &cohortwire.Frame{Type: frameControl, Payload: encodeControl(f)})
		cancel()
		if err != nil { // the next frame brings it again, on this link or on the next
			r.mu.Lock()
			r.m.Resend(p.worker)
			r.mu.Unlock()
			return
		}
	}
}

// flushNow sends hand-offs before the message that carries the references.
func (r *refs) flushNow(p *peer, wires []rrefcore.Wire) {
	if len(wires) == 0 || p == nil {
		return
	}
	if c := p.current(); c != nil && c.link != nil {
		r.flushOn(p, c)
	}
}

// connected tells the machine about a peer's new session, before anything else goes over it.
func (r *refs) connected(p *peer, kind rrefcore.PeerKind, epoch uint64, c *conn) {
	if p.worker < 0 {
		return
	}
	p.flush.Lock()
	if kind == rrefcore.Cohort {
		p.stream = c // from here on nothing goes out on an older link, so the new one brings everything in order
	}
	r.step(func(m *rrefcore.Machine) {
		m.AddPeer(p.worker, kind, rrefcore.Epoch(epoch))
		if kind == rrefcore.Cohort {
			m.Resend(p.worker)
			if m.PeerDead(p.worker) {
				m.Greet(p.worker)
			}
		}
	})
	p.flush.Unlock()
	if kind == rrefcore.Cohort {
		r.flushSoon(p) // not here: a link's reader may be waiting
	}
}

// known makes sure that the machine knows what kind of worker id is. Called with the lock.
func (r *refs) known(id rrefcore.Worker) {
	if id == r.a.id {
		return
	}
	p := r.a.peerByID(id)
	if p == nil {
		return
	}
	p.mu.Lock()
	cohort, epoch := p.cohort, p.epoch
	p.mu.Unlock()
	if cohort {
		r.m.AddPeer(id, rrefcore.Cohort, rrefcore.Epoch(epoch))
	} else {
		r.m.AddPeer(id, rrefcore.PyTorch, 0)
	}
}

// epochOf returns the life that an id without epoch belongs to: PyTorch's messages carry none.
func (r *refs) epochOf(id rrefcore.Worker) rrefcore.Epoch {
	if id == r.a.id {
		return rrefcore.Epoch(r.a.epoch)
	}
	if p := r.a.peerByID(id); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cohort {
			return rrefcore.Epoch(p.epoch)
		}
	}
	return 0
}

// id completes an id of PyTorch's wire.
func (r *refs) id(g rpcwire.GlobalID) rrefcore.ID {
	on := rrefcore.Worker(g.On)
	return rrefcore.ID{On: on, N: uint64(g.Local), Epoch: r.epochOf(on)} //nolint:gosec // two's complement
}

func global(id rrefcore.ID) rpcwire.GlobalID {
	return rpcwire.GlobalID{On: rpcwire.WorkerID(id.On), Local: int64(id.N)} //nolint:gosec // a counter
}

func (r *refs) died(p *peer) {
	r.step(func(m *rrefcore.Machine) {
		r.known(p.worker)
		m.PeerDied(p.worker)
	})
}

func (r *refs) tied(p *peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.Tied(p.worker)
}

// frame handles a frame of a Go peer's control stream, in the link's reading goroutine.
func (r *refs) frame(c *conn, payload []byte) {
	f, err := parseControl(payload)
	if err == nil && (f.From != c.peer().worker || f.To != r.a.id || uint64(f.Epoch) != c.link.Peer().Incarnation) {
		err = dist.Newf("rpc: control stream", dist.Protocol, "a frame of worker %d for worker %d on the link with worker %d", f.From, f.To, c.peer().worker)
	}
	if err != nil {
		r.a.cfg.logger.Warn("control frame dropped", slog.String("peer", c.peer().name), slog.String("err", err.Error()))
		return
	}
	r.step(func(m *rrefcore.Machine) { m.ReceiveFrame(f) })
}

// close ends everything that waits for a value.
func (r *refs) close() {
	r.mu.Lock()
	r.closed = true
	objects := make([]*object, 0, len(r.objects))
	for _, o := range r.objects {
		objects = append(objects, o)
	}
	for _, h := range r.handles {
		h.settle(errClosed("reference"))
	}
	r.mu.Unlock()
	for _, o := range objects {
		o.stop(errClosed("remote"))
		o.set(nil, errClosed("fetch"))
	}
}
