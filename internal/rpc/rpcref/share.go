// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Encoder returns the encoder of a message to p. The references in it are pinned or registered as they are met, and
// collected in wires: the message must be sent, or Undelivered be called.
func (r *Refs) Encoder(p *rpcsession.Peer, toGo bool) (*rpcwire.Encoder, *[]rrefcore.Wire) {
	s := &sharing{r: r, peer: p}
	s.e = rpcwire.Encoder{Native: toGo, Fork: s.fork, Tensors: s.tensors[:0]}
	return &s.e, &s.wires
}

// sharing is the encoder of one message and the references that it met.
type sharing struct {
	r       *Refs
	peer    *rpcsession.Peer
	e       rpcwire.Encoder
	wires   []rrefcore.Wire
	tensors [1]any // room for the first, which often is the only one
}

// fork makes the fork of a reference in the message.
func (s *sharing) fork(ref pyconv.Reference) (rpcwire.RRefFork, error) {
	r := s.r
	core := r.cfg.Unwrap(ref)
	if core == nil {
		return rpcwire.RRefFork{}, cohort.Newf("rpc: share", cohort.InvalidArgument, "a %T without an object", ref)
	}
	if core.Refs != r {
		return rpcwire.RRefFork{}, cohort.New("rpc: share", cohort.InvalidArgument, "a reference of another agent")
	}
	if s.peer == r.cfg.Self {
		w, err := r.lend(core)
		if err != nil {
			return rpcwire.RRefFork{}, err
		}
		s.wires = append(s.wires, w)
		return rpcwire.RRefFork{Owner: rpcwire.WorkerID(r.cfg.ID), Fork: Global(w.Fork), TypeName: core.TypeName()}, nil
	}
	w, typeName, err := r.share(core, s.peer)
	if err != nil {
		return rpcwire.RRefFork{}, err
	}
	s.wires = append(s.wires, w)
	if !s.e.Native && (typeName == "" || IsGoType(typeName)) {
		typeName = rpcwire.TypePyObject // what a Go object is to Python
	}
	return rpcwire.RRefFork{
		Owner: rpcwire.WorkerID(w.Owner), RRef: Global(w.ID), Fork: Global(w.Fork), Parent: rpcwire.WorkerID(r.cfg.ID), TypeName: typeName,
	}, nil
}

// share forks a reference for a message to p.
func (r *Refs) share(core *Hold, p *rpcsession.Peer) (rrefcore.Wire, string, error) {
	if core.Closed.Load() {
		return rrefcore.Wire{}, "", core.Failure("share", rrefcore.Closed)
	}
	if p == nil || p.ID < 0 {
		return rrefcore.Wire{}, "", cohort.New("rpc: share", cohort.NotSupported,
			"a reference cannot be given to a client: it is not a worker of the world")
	}
	failpoint.At("rpc.refs.share")
	r.mu.Lock()
	r.known(p.ID)
	var w rrefcore.Wire
	var code rrefcore.Code
	if core.Object != nil {
		w, code = r.mu.m.ShareOwned(core.Object.ID, p.ID)
	} else {
		w, code = r.mu.m.Share(core.Handle.Wire.Fork, p.ID)
	}
	e := r.take(false)
	// The caller flushes to p before it sends. The owner should learn of a new object before the receiver asks it for a fork.
	e.wake = w.Owner != p.ID && r.mu.m.Unsent(w.Owner) > 0
	r.mu.Unlock()
	r.perform(e)
	if code != rrefcore.OK {
		return w, "", core.Failure("share", code)
	}
	return w, core.TypeName(), nil
}

// lend keeps a second hold of a reference for a message of this worker to itself.
func (r *Refs) lend(core *Hold) (rrefcore.Wire, error) {
	twin, err := core.Dup()
	if err != nil {
		return rrefcore.Wire{}, err
	}
	failpoint.At("rpc.refs.lend")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.token++
	r.mu.lent[r.mu.token] = twin
	return rrefcore.Wire{Fork: rrefcore.ID{On: r.cfg.ID, N: r.mu.token}, Owner: r.cfg.ID}, nil
}

// reclaim takes what lend kept.
func (r *Refs) reclaim(token uint64) *Hold {
	failpoint.At("rpc.refs.reclaim")
	r.mu.Lock()
	defer r.mu.Unlock()
	core := r.mu.lent[token]
	delete(r.mu.lent, token)
	return core
}

// Undelivered reports a message with references that will not arrive, or may not have. Among Go workers the hand-off is
// withdrawn, which does nothing if it was claimed.
func (r *Refs) Undelivered(p *rpcsession.Peer, wires []rrefcore.Wire) {
	if len(wires) == 0 || p == nil || p.ID < 0 {
		return
	}
	if p == r.cfg.Self {
		for _, w := range wires {
			if core := r.reclaim(w.Fork.N); core != nil {
				core.Close()
			}
		}
		return
	}
	r.step(func(m *rrefcore.Machine) {
		for _, w := range wires {
			m.Undelivered(p.ID, w)
		}
	})
}

// Undecoded reports a message to a PyTorch worker that it surely did not decode: its references are released as if the
// worker had accepted and dropped them.
func (r *Refs) Undecoded(p *rpcsession.Peer, wires []rrefcore.Wire) {
	if len(wires) == 0 {
		return
	}
	if p == r.cfg.Self || p.SpeaksCohort() {
		r.Undelivered(p, wires)
		return
	}
	r.step(func(m *rrefcore.Machine) {
		for _, w := range wires {
			if w.Owner == r.cfg.ID {
				m.Control(p.ID, rrefcore.Message{Kind: rrefcore.Delete, ID: w.ID, Fork: w.Fork})
			} else {
				m.Control(p.ID, rrefcore.Message{Kind: rrefcore.ChildAccept, Fork: w.Fork})
			}
		}
	})
}

// HeaderForks names the references of a message outside of its payload.
func HeaderForks(wires []rrefcore.Wire) []cohortwire.Fork {
	if len(wires) == 0 {
		return nil
	}
	forks := make([]cohortwire.Fork, len(wires))
	for i, w := range wires {
		forks[i] = cohortwire.Fork{
			Owner: int16(w.Owner), RRefOn: int16(w.ID.On), ForkOn: int16(w.Fork.On), Parent: int16(w.Parent),
			RRef: int64(w.ID.N), Fork: int64(w.Fork.N), //nolint:gosec // counters
		}
	}
	return forks
}

// Discard releases what an undecoded frame brought.
func (r *Refs) Discard(c *rpcsession.Conn, f *cohortwire.Frame) {
	if len(f.Forks) == 0 || c == nil || c.Peer().ID < 0 {
		return
	}
	r.step(func(m *rrefcore.Machine) {
		for _, k := range f.Forks {
			//nolint:gosec // counters
			m.Discard(c.Peer().ID, rrefcore.ID{On: rrefcore.Worker(k.ForkOn), N: uint64(k.Fork), Epoch: rrefcore.Epoch(f.Incarnation)})
		}
	})
}

// DiscardAnswer releases the references in an answer of a PyTorch worker that is not awaited any more: that worker
// keeps their objects until it is told.
func (r *Refs) DiscardAnswer(p *rpcsession.Peer, m *rpcwire.Message) {
	kind, payload := m.Type, m.Payload
	if kind == rpcwire.ForwardAutogradResp {
		w, inner, err := rpcwire.UnwrapAutograd(payload)
		if err != nil {
			return
		}
		kind, payload = w.Inner, inner
	}
	d := r.Decoding(p, nil, m.Tensors)
	switch kind { //nolint:exhaustive // the others bring none
	case rpcwire.PythonRet:
		_, _ = d.PythonRet(payload)
	case rpcwire.ScriptRet:
		_, _ = d.ScriptRet(payload)
	case rpcwire.PythonRRefFetchRet:
		_, _ = d.PythonFetchRet(payload)
	case rpcwire.ScriptRRefFetchRet:
		_, _ = d.ScriptFetchRet(payload)
	}
	d.Abandon(m)
}

// unsettled returns what is closed when more is known about the references of a frame, or nil when they can be claimed. Called
// with the lock.
func (r *Refs) unsettled(f *cohortwire.Frame) <-chan struct{} {
	for _, k := range f.Forks {
		//nolint:gosec // counters
		if !r.mu.m.Unsettled(rrefcore.ID{On: rrefcore.Worker(k.ForkOn), N: uint64(k.Fork), Epoch: rrefcore.Epoch(f.Incarnation)}) {
			continue
		}
		if r.mu.settled == nil {
			r.mu.settled = make(chan struct{})
		}
		return r.mu.settled
	}
	return nil
}

// Early reports whether a frame brings a reference to an own object of which it is not known yet whether its sender holds it.
func (r *Refs) Early(f *cohortwire.Frame) bool {
	if f == nil || len(f.Forks) == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsettled(f) != nil
}

// AwaitEarly waits until the references that a frame brings can be claimed, or surely cannot. When ctx ends before, they are
// refused as they are decoded.
func (r *Refs) AwaitEarly(ctx context.Context, f *cohortwire.Frame) {
	if f == nil || len(f.Forks) == 0 {
		return
	}
	for {
		failpoint.At("rpc.refs.early.look")
		r.mu.Lock()
		settled := r.unsettled(f)
		r.mu.Unlock()
		if settled == nil {
			return
		}
		pl := rpcslots.Of(ctx)
		pl.Pause()
		failpoint.At("rpc.refs.early")
		select {
		case <-settled:
			pl.Resume()
		case <-ctx.Done():
			pl.Resume()
			return
		case <-r.cfg.Net.Context.Done():
			pl.Resume()
			return
		}
	}
}

// Decoding reads one message and collects the references that it brings.
type Decoding struct {
	rpcwire.Decoder
	r     *Refs
	peer  *rpcsession.Peer
	frame *cohortwire.Frame // of a link
	got   []*Hold
	came  []rpcwire.GlobalID // the forks that a PyTorch worker sent, and that have been read
}

// Decoding returns the decoder of a message of p; frame is that of a link.
func (r *Refs) Decoding(p *rpcsession.Peer, frame *cohortwire.Frame, tensors []any) *Decoding {
	d := &Decoding{}
	d.Begin(r, p, frame, tensors)
	return d
}

// Begin makes d the decoder of a message.
func (d *Decoding) Begin(r *Refs, p *rpcsession.Peer, frame *cohortwire.Frame, tensors []any) {
	d.r, d.peer, d.frame = r, p, frame
	d.Decoder = rpcwire.Decoder{Tensors: tensors, Arrive: d.arrive}
}

// arrive makes the reference of a fork that a message brought.
func (d *Decoding) arrive(f rpcwire.RRefFork) (any, error) {
	if d.peer == d.r.cfg.Self {
		core := d.r.reclaim(uint64(f.Fork.Local)) //nolint:gosec // our own counter
		if core == nil {
			return nil, cohort.New("rpc: decode value", cohort.Internal, "a reference of a call to self is missing")
		}
		d.got = append(d.got, core)
		return d.r.cfg.Wrap(core), nil
	}
	if d.peer == nil || d.peer.ID < 0 {
		return nil, cohort.New("rpc: decode value", cohort.NotSupported, "a guest cannot pass references")
	}
	r := d.r
	if d.frame == nil {
		d.came = append(d.came, f.Fork)
	}
	typeName := f.TypeName
	if typeName == rpcwire.TypePyObject {
		typeName = ""
	}
	owner := rrefcore.Worker(f.Owner)
	core := &Hold{Refs: r, Named: typeName, Script: typeName != "" && !IsGoType(typeName)}
	r.mu.Lock()
	r.known(d.peer.ID)
	r.known(owner)
	r.known(rrefcore.Worker(f.RRef.On)) // its creating call may be on its way
	var w rrefcore.Wire
	var code rrefcore.Code
	owned := owner == r.cfg.ID
	if d.frame != nil {
		//nolint:gosec // a counter
		fork := rrefcore.ID{On: rrefcore.Worker(f.Fork.On), N: uint64(f.Fork.Local), Epoch: rrefcore.Epoch(d.frame.Incarnation)}
		w, code = r.mu.m.Claim(d.peer.ID, fork, owned)
	} else {
		w = rrefcore.Wire{ID: r.id(f.RRef), Fork: r.id(f.Fork), Owner: owner, OwnerEpoch: r.epochOf(owner), Parent: d.peer.ID}
		if old := r.mu.handles[w.Fork]; old != nil && !owned {
			code = rrefcore.Withdrawn
		} else {
			_, code = r.mu.m.Receive(d.peer.ID, w)
		}
	}
	if code == rrefcore.OK {
		if owned {
			core.Object = r.object(w.ID)
		} else {
			core.Handle = r.enter(w, "received from "+d.peer.Name)
			if confirmed, failed := r.mu.m.State(w.Fork); confirmed {
				core.Handle.settle(nil)
			} else if failed != rrefcore.OK {
				core.Handle.settle(r.unusable(core.Handle, failed))
			}
		}
	}
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
	if code != rrefcore.OK {
		return nil, r.cfg.Failure("receive", r.id(f.RRef), "", code, nil)
	}
	d.got = append(d.got, core)
	return d.r.cfg.Wrap(core), nil
}

// Confirmed waits until the owners know of all references, so that user code may use them in any way.
func (d *Decoding) Confirmed(ctx context.Context) error {
	for _, core := range d.got {
		if core.Handle == nil {
			continue
		}
		if !d.r.settled(core.Handle) {
			pl := rpcslots.Of(ctx)
			pl.Pause()
			failpoint.At("rpc.refs.confirmed")
			select {
			case <-d.r.Ready(core.Handle):
				pl.Resume()
			case <-ctx.Done():
				pl.Resume()
				return cohort.FromContext(ctx, "rpc: confirm reference")
			}
		}
		if err := core.State(); err != nil {
			return err
		}
	}
	return nil
}

// Release closes the references of a message whose function does not run.
func (d *Decoding) Release() {
	for _, core := range d.got {
		core.Close()
	}
}

// Unread releases the references of a PyTorch worker's message that were not read, since something else in it could not
// be, or since no caller wants it: that worker keeps them until it is told.
func (d *Decoding) Unread(kind rpcwire.Type, payload []byte) {
	if d.frame != nil || d.peer == nil || d.peer == d.r.cfg.Self || d.peer.ID < 0 {
		return
	}
	came := map[rpcwire.GlobalID]bool{}
	for _, fork := range d.came {
		came[fork] = true
	}
	rest := d.r.Decoding(d.peer, nil, nil)
	for _, f := range rpcwire.Forks(kind, payload) {
		if !came[f.Fork] {
			came[f.Fork] = true
			_, _ = rest.arrive(f) // one that is refused is released by that
		}
	}
	rest.Release()
}

// Abandon releases the references of an answer that could not be read to its end.
func (d *Decoding) Abandon(m *rpcwire.Message) {
	d.Release()
	d.Unread(m.Type, m.Payload)
	if d.frame != nil && d.peer != nil {
		if c := d.peer.Current(); c != nil {
			d.r.Discard(c, d.frame)
		}
	}
}
