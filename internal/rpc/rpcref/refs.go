// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Config is what the driver of references needs to know of its worker.
type Config struct {
	Name   string
	ID     rrefcore.Worker
	Epoch  rrefcore.Epoch
	Core   rrefcore.Options
	Logger *slog.Logger
	Net    *rpcsession.Links
	Self   *rpcsession.Peer     // this worker as a destination
	Limit  func() time.Duration // of a control message to a PyTorch worker
	// IsGo reports whether a worker is one of ours, on whichever transport.
	IsGo func(ctx context.Context, name string) (bool, error)
	// Wrap makes what the program gets for a reference, Unwrap is its inverse: nil for anything else.
	Wrap   func(*Hold) any
	Unwrap func(any) *Hold
	// Opaque reports whether a value is not to be looked into for references.
	Opaque func(any) bool
	// Failure makes the error of a reference that cannot be used.
	Failure func(op string, id rrefcore.ID, owner string, code rrefcore.Code, cause error) error
}

// Refs drives the reference machine: it owns it under one mutex, performs its effects outside of it, and keeps the values
// and the handles that belong to its ids.
type Refs struct {
	cfg   Config
	begun time.Time

	kick      chan struct{} // wakes run
	later     *time.Timer   // wakes run a little later
	soon      atomic.Bool   // later is set
	Collected atomic.Int64  // references that were forgotten

	mu struct {
		sync.Mutex
		m       *rrefcore.Machine
		objects map[rrefcore.ID]*Object
		handles map[rrefcore.ID]*Handle
		lives   map[rrefcore.Worker]*rpcsession.Peer // whom the machine knows under an id
		dirty   map[rrefcore.Worker]bool             // Go peers with something to be sent, and whether a caller may wait for what it brings
		lazy    map[rrefcore.Worker]struct{}         // those of them that are flushed next time even without a message
		taken   []rrefcore.Effect                    // room for what a step asks for
		arrived []rrefcore.Message                   // room for the messages of a frame
		ahead   effects                              // taken before the end of a step
		closed  bool
		lent    map[uint64]*Hold // on their way from this worker to itself
		settled chan struct{}    // closed when a reference that was handed to this worker, its owner, is decided about; made on demand
		token   uint64
	}
}

// New returns the references of a worker that has none yet.
func New(cfg Config) *Refs {
	r := &Refs{cfg: cfg, begun: time.Now(), kick: make(chan struct{}, 1), later: stoppedTimer()}
	r.mu.m = rrefcore.New(cfg.ID, cfg.Epoch, cfg.Core)
	r.mu.objects, r.mu.handles, r.mu.lent = map[rrefcore.ID]*Object{}, map[rrefcore.ID]*Handle{}, map[uint64]*Hold{}
	r.mu.lives = map[rrefcore.Worker]*rpcsession.Peer{}
	r.mu.dirty, r.mu.lazy = map[rrefcore.Worker]bool{}, map[rrefcore.Worker]struct{}{}
	return r
}

// peerState is what is kept with a peer.
type peerState struct {
	flush    sync.Mutex // keeps control frames in order
	flushes  struct{ wanted, running atomic.Bool }
	stream   *rpcsession.Conn   // where they go; guarded by flush
	leaving  []rrefcore.Message // room for the messages of a frame; guarded by flush
	bytes    []byte             // room for the frame itself; guarded by flush
	creating sync.Mutex         // keeps two copies of a creating call apart

	control struct { // messages to a PyTorch worker
		sync.Mutex
		queue   []rrefcore.Message
		running bool
	}
}

// NewPeer returns what is kept with a new peer.
func NewPeer() any { return &peerState{} }

// Creating keeps two copies of a creating call of a peer apart while they are decoded.
func (r *Refs) Creating(p *rpcsession.Peer) *sync.Mutex { return &of(p).creating }

func of(p *rpcsession.Peer) *peerState { return p.State.(*peerState) } //nolint:errcheck,forcetypeassert // made by above.NewPeer

// effects are what a step asks for, to be performed without the lock.
type effects struct {
	sends []rrefcore.Effect
	calls []func()
	wake  bool // something is to be sent
	later bool // something is to be sent, but can wait a little
}

// step runs fn on the machine and performs what it asks for. Flushes are left to run, unless the caller does them.
func (r *Refs) step(fn func(m *rrefcore.Machine)) {
	failpoint.At("rpc.refs.step")
	r.stepHeld(fn)
}

// stepHeld is step for a caller that holds a lock: it has no failpoint.
func (r *Refs) stepHeld(fn func(m *rrefcore.Machine)) {
	r.mu.Lock()
	fn(r.mu.m)
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
}

// take sorts the machine's effects. late says that what is to be sent can wait a little. Called with the lock.
func (r *Refs) take(late bool) (e effects) {
	e, r.mu.ahead = r.mu.ahead, effects{}
	r.mu.taken = r.mu.m.Take(r.mu.taken[:0])
	for i := range r.mu.taken {
		x := &r.mu.taken[i] // what is kept of it must be copied
		switch x.Kind {
		case rrefcore.Send:
			e.sends = append(e.sends, *x)
		case rrefcore.Flush:
			if late || x.Late {
				if _, known := r.mu.dirty[x.To]; !known {
					r.mu.dirty[x.To] = false
				}
				e.later = true
				continue
			}
			r.mu.dirty[x.To] = true
			e.wake = true
		case rrefcore.Confirmed:
			if h := r.mu.handles[x.Fork]; h != nil {
				h.settle(nil)
			}
		case rrefcore.Failed:
			if h := r.mu.handles[x.Fork]; h != nil {
				h.settle(r.unusable(h, x.Code))
			}
		case rrefcore.Free:
			if o := r.mu.objects[x.ID]; o != nil {
				delete(r.mu.objects, x.ID)
				if !o.IsDone() {
					e.calls = append(e.calls, o.freed)
				}
			}
		case rrefcore.CancelRun:
			if o := r.mu.objects[x.ID]; o != nil {
				e.calls = append(e.calls, func() {
					o.stop(cohort.New("rpc: remote", cohort.Canceled, "the creation was cancelled by its creator"))
				})
			}
		case rrefcore.Orphaned:
			if o := r.mu.objects[x.ID]; o != nil {
				id, code := x.ID, x.Code
				e.calls = append(e.calls, func() { o.Set(nil, r.cfg.Failure("fetch", id, r.cfg.Name, code, nil)) })
			}
		case rrefcore.Settled:
			if r.mu.settled != nil {
				close(r.mu.settled)
				r.mu.settled = nil
			}
		}
	}
	return e
}

// stepLazy is step for what need not go out at once: deletes, confirmations that an answer brings as well. It goes with
// the next frame, or a little later.
func (r *Refs) stepLazy(fn func(m *rrefcore.Machine)) {
	failpoint.At("rpc.refs.lazy")
	r.mu.Lock()
	fn(r.mu.m)
	e := r.take(true)
	r.mu.Unlock()
	r.perform(e)
}

func (r *Refs) perform(e effects) {
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

// Run sends what is waiting and tells the machine the time.
func (r *Refs) Run() {
	every := r.cfg.Core.Heartbeat / 4
	if every <= 0 {
		every = 250 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	acks := stoppedTimer()
	defer acks.Stop()
	defer r.later.Stop()
	for {
		failpoint.At("rpc.refs.run")
		select {
		case <-r.kick:
		case <-r.later.C:
			r.soon.Store(false)
		case <-acks.C:
		case <-tick.C:
			r.step(func(m *rrefcore.Machine) { m.Tick(time.Since(r.begun)) })
		case <-r.cfg.Net.Context.Done():
			return
		}
		if r.flushDirty() {
			acks.Reset(ackDelay)
		}
	}
}

// controlDelay is how long deletes wait for company, ackDelay how long acknowledgements do. With ControlRide messages the
// next creating call takes them along.
const (
	controlDelay = 5 * time.Millisecond
	ackDelay     = 10 * time.Millisecond
	ControlRide  = 64
)

// Connected tells the machine about a peer's new session, before anything else goes over it.
func (r *Refs) Connected(c *rpcsession.Conn) {
	p := c.Peer()
	if p.ID < 0 {
		return
	}
	kind, epoch := rrefcore.PyTorch, rrefcore.Epoch(0)
	if c.Link != nil {
		kind, epoch = rrefcore.Cohort, rrefcore.Epoch(c.Link.Peer().Incarnation)
	}
	q := of(p)
	q.flush.Lock()
	if c.Link != nil {
		q.stream = c // from here on nothing goes out on an older link, so the new one brings everything in order
	}
	r.stepHeld(func(m *rrefcore.Machine) {
		r.add(p, kind, epoch)
		if c.Link != nil {
			m.Resend(p.ID)
			if m.PeerDead(p.ID) {
				m.Greet(p.ID)
			}
		}
	})
	q.flush.Unlock()
	if c.Link != nil {
		r.flushSoon(p) // not here: a link's reader may be waiting
	}
}

// known makes sure that the machine knows what kind of worker id is. Called with the lock.
func (r *Refs) known(id rrefcore.Worker) {
	if id == r.cfg.ID {
		return
	}
	p := r.cfg.Net.PeerByID(id)
	if p == nil {
		return
	}
	if goPeer, epoch := p.Epoch(); goPeer {
		r.add(p, rrefcore.Cohort, rrefcore.Epoch(epoch))
	} else {
		r.add(p, rrefcore.PyTorch, 0)
	}
}

// add makes a worker known to the machine, in the place of one that had its id before.
func (r *Refs) add(p *rpcsession.Peer, kind rrefcore.PeerKind, epoch rrefcore.Epoch) {
	former := r.mu.lives[p.ID]
	switch {
	case r.Former(p): // its successor is there already
	case former != nil && former != p:
		r.mu.lives[p.ID] = p
		r.mu.m.Replace(p.ID, kind, epoch)
		r.mu.ahead = r.take(false) // now: what is made next may have the id of what is freed
	default:
		r.mu.lives[p.ID] = p
		r.mu.m.AddPeer(p.ID, kind, epoch)
	}
}

// Former reports whether another worker has the id of p now.
func (r *Refs) Former(p *rpcsession.Peer) bool {
	now := r.cfg.Net.PeerByID(p.ID)
	return now != nil && now != p
}

// epochOf returns the life that an id without epoch belongs to: PyTorch's messages carry none.
func (r *Refs) epochOf(id rrefcore.Worker) rrefcore.Epoch {
	if id == r.cfg.ID {
		return r.cfg.Epoch
	}
	if p := r.cfg.Net.PeerByID(id); p != nil {
		if goPeer, epoch := p.Epoch(); goPeer {
			return rrefcore.Epoch(epoch)
		}
	}
	return 0
}

// id completes an id of PyTorch's wire.
func (r *Refs) id(g rpcwire.GlobalID) rrefcore.ID {
	on := rrefcore.Worker(g.On)
	return rrefcore.ID{On: on, N: uint64(g.Local), Epoch: r.epochOf(on)} //nolint:gosec // two's complement
}

// Global is an id as PyTorch's wire has it, without the epoch.
func Global(id rrefcore.ID) rpcwire.GlobalID {
	return rpcwire.GlobalID{On: rpcwire.WorkerID(id.On), Local: int64(id.N)} //nolint:gosec // a counter
}

// Died is told that a worker's process has ended.
func (r *Refs) Died(p *rpcsession.Peer) {
	r.step(func(m *rrefcore.Machine) {
		r.known(p.ID)
		if !r.Former(p) {
			m.PeerDied(p.ID)
		}
	})
}

// Tied reports whether references tie us to a worker.
func (r *Refs) Tied(p *rpcsession.Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.m.Tied(p.ID)
}

// Frame handles a frame of a Go peer's control stream, in the link's reading goroutine.
func (r *Refs) Frame(c *rpcsession.Conn, payload []byte) {
	var err error
	r.stepHeld(func(m *rrefcore.Machine) { // Conn.enter may be held
		var f rrefcore.Frame
		if f, err = parseControl(payload, r.mu.arrived); err != nil {
			return
		}
		if f.From != c.Peer().ID || f.To != r.cfg.ID || uint64(f.Epoch) != c.Link.Peer().Incarnation {
			err = cohort.Newf("rpc: control stream", cohort.Protocol,
				"a frame of worker %d for worker %d on the link with worker %d", f.From, f.To, c.Peer().ID)
			return
		}
		m.ReceiveFrame(f)
		r.mu.arrived = kept(f.Msgs)
	})
	if err != nil {
		r.cfg.Logger.Warn("control frame dropped", slog.String("peer", c.Peer().Name), slog.String("err", err.Error()))
	}
}

// kept returns room for the messages of the next frame, unless it is too much to be kept.
func kept(room []rrefcore.Message) []rrefcore.Message {
	if cap(room) > 4*ControlRide {
		return nil
	}
	return room[:0]
}

// Close ends everything that waits for a value.
func (r *Refs) Close() {
	failpoint.At("rpc.refs.close")
	r.mu.Lock()
	r.mu.closed = true
	objects := make([]*Object, 0, len(r.mu.objects))
	for _, o := range r.mu.objects {
		objects = append(objects, o)
	}
	for _, h := range r.mu.handles {
		h.settle(rpcsession.ErrClosed("reference"))
	}
	r.mu.Unlock()
	for _, o := range objects {
		o.stop(rpcsession.ErrClosed("remote"))
		o.Set(nil, rpcsession.ErrClosed("fetch"))
	}
}
