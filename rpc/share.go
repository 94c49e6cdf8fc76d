// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// encoder returns the encoder of a message to p. The references in it are pinned or registered as they are met, and
// collected in wires: the message must be sent, or undelivered be called.
func (r *refs) encoder(p *rpclink.Peer, toGo bool) (*rpcwire.Encoder, *[]rrefcore.Wire) {
	s := &sharing{r: r, peer: p}
	s.e = rpcwire.Encoder{Native: toGo, Fork: s.fork, Tensors: s.tensors[:0]}
	return &s.e, &s.wires
}

// sharing is the encoder of one message and the references that it met.
type sharing struct {
	r       *refs
	peer    *rpclink.Peer
	e       rpcwire.Encoder
	wires   []rrefcore.Wire
	tensors [1]any // room for the first, which often is the only one
}

// fork makes the fork of a reference in the message.
func (s *sharing) fork(ref rpcwire.Reference) (rpcwire.RRefFork, error) {
	holder, ok := ref.(refHolder)
	if !ok || holder.core() == nil {
		return rpcwire.RRefFork{}, dist.Newf("rpc: share", dist.InvalidArgument, "a %T without an object", ref)
	}
	r, core := s.r, holder.core()
	if core.a != r.a {
		return rpcwire.RRefFork{}, dist.New("rpc: share", dist.InvalidArgument, "a reference of another agent")
	}
	if s.peer == r.a.self {
		w, err := r.lend(core)
		if err != nil {
			return rpcwire.RRefFork{}, err
		}
		s.wires = append(s.wires, w)
		return rpcwire.RRefFork{Owner: rpcwire.WorkerID(r.a.id), Fork: global(w.Fork), TypeName: core.typeName}, nil
	}
	w, typeName, err := r.share(core, s.peer)
	if err != nil {
		return rpcwire.RRefFork{}, err
	}
	s.wires = append(s.wires, w)
	if !s.e.Native && (typeName == "" || isGoType(typeName)) {
		typeName = rpcwire.TypePyObject // what a Go object is to Python
	}
	return rpcwire.RRefFork{
		Owner: rpcwire.WorkerID(w.Owner), RRef: global(w.ID), Fork: global(w.Fork), Parent: rpcwire.WorkerID(r.a.id), TypeName: typeName,
	}, nil
}

// share forks a reference for a message to p.
func (r *refs) share(core *refCore, p *rpclink.Peer) (rrefcore.Wire, string, error) {
	if core.closed.Load() {
		return rrefcore.Wire{}, "", core.failure("share", rrefcore.Closed)
	}
	if p == nil || p.ID < 0 {
		return rrefcore.Wire{}, "", dist.New("rpc: share", dist.NotSupported, "a reference cannot be given to a guest, who is no worker of the world")
	}
	r.mu.Lock()
	r.known(p.ID)
	var w rrefcore.Wire
	var code rrefcore.Code
	if core.obj != nil {
		w, code = r.m.ShareOwned(core.obj.id, p.ID)
	} else {
		w, code = r.m.Share(core.h.wire.Fork, p.ID)
	}
	e := r.take(false)
	e.wake = false // the caller flushes before it sends
	r.mu.Unlock()
	r.perform(e)
	if code != rrefcore.OK {
		return w, "", core.failure("share", code)
	}
	return w, core.typeName, nil
}

// lend keeps a second hold of a reference for a message of this worker to itself.
func (r *refs) lend(core *refCore) (rrefcore.Wire, error) {
	twin, err := core.dup()
	if err != nil {
		return rrefcore.Wire{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.token++
	r.lent[r.token] = twin
	return rrefcore.Wire{Fork: rrefcore.ID{On: r.a.id, N: r.token}, Owner: r.a.id}, nil
}

// reclaim takes what lend kept.
func (r *refs) reclaim(token uint64) *refCore {
	r.mu.Lock()
	defer r.mu.Unlock()
	core := r.lent[token]
	delete(r.lent, token)
	return core
}

// undelivered reports a message with references that will not arrive, or may not have. Among Go workers the hand-off is
// withdrawn, which does nothing if it was claimed.
func (r *refs) undelivered(p *rpclink.Peer, wires []rrefcore.Wire) {
	if len(wires) == 0 || p == nil || p.ID < 0 {
		return
	}
	if p == r.a.self {
		for _, w := range wires {
			if core := r.reclaim(w.Fork.N); core != nil {
				core.close()
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

// undecoded reports a message to a PyTorch worker that it surely did not decode: its references are released as if the
// worker had accepted and dropped them.
func (r *refs) undecoded(p *rpclink.Peer, wires []rrefcore.Wire) {
	if len(wires) == 0 {
		return
	}
	if p == r.a.self || p.SpeaksCohort() {
		r.undelivered(p, wires)
		return
	}
	r.step(func(m *rrefcore.Machine) {
		for _, w := range wires {
			if w.Owner == r.a.id {
				m.Control(p.ID, rrefcore.Message{Kind: rrefcore.Delete, ID: w.ID, Fork: w.Fork})
			} else {
				m.Control(p.ID, rrefcore.Message{Kind: rrefcore.ChildAccept, Fork: w.Fork})
			}
		}
	})
}

// headerForks names the references of a message outside of its payload.
func headerForks(wires []rrefcore.Wire) []cohortwire.Fork {
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

// discard releases what an undecoded frame brought.
func (r *refs) discard(c *rpclink.Conn, f *cohortwire.Frame) {
	if len(f.Forks) == 0 || c == nil || c.Peer().ID < 0 {
		return
	}
	r.step(func(m *rrefcore.Machine) {
		for _, k := range f.Forks {
			m.Discard(rrefcore.ID{On: rrefcore.Worker(k.ForkOn), N: uint64(k.Fork), Epoch: rrefcore.Epoch(f.Incarnation)}) //nolint:gosec // counters
		}
	})
}

// decoding reads one message and collects the references that it brings.
type decoding struct {
	rpcwire.Decoder
	r     *refs
	peer  *rpclink.Peer
	frame *cohortwire.Frame // of a link
	got   []*refCore
}

func (r *refs) decoding(req *request) *decoding {
	d := &decoding{r: r, peer: req.Peer, frame: req.Frame}
	d.Decoder = rpcwire.Decoder{Tensors: req.Tensors, Arrive: d.arrive}
	return d
}

func (r *refs) decodingReply(p *rpclink.Peer, x rpclink.Reply) *decoding {
	d := &decoding{r: r, peer: p, frame: x.Frame}
	d.Decoder = rpcwire.Decoder{Tensors: x.Msg.Tensors, Arrive: d.arrive}
	return d
}

// arrive makes the reference of a fork that a message brought.
func (d *decoding) arrive(f rpcwire.RRefFork) (any, error) {
	if d.peer == d.r.a.self {
		core := d.r.reclaim(uint64(f.Fork.Local)) //nolint:gosec // our own counter
		if core == nil {
			return nil, dist.New("rpc: decode value", dist.Internal, "a reference of a call to self is missing")
		}
		d.got = append(d.got, core)
		return wrapRef[any](core), nil
	}
	if d.peer == nil || d.peer.ID < 0 {
		return nil, dist.New("rpc: decode value", dist.NotSupported, "a guest cannot pass references")
	}
	r := d.r
	typeName := f.TypeName
	if typeName == rpcwire.TypePyObject {
		typeName = ""
	}
	owner := rrefcore.Worker(f.Owner)
	core := &refCore{a: r.a, typeName: typeName, script: typeName != "" && !isGoType(typeName)}
	r.mu.Lock()
	r.known(d.peer.ID)
	r.known(owner)
	var w rrefcore.Wire
	var code rrefcore.Code
	owned := owner == r.a.id
	if d.frame != nil {
		fork := rrefcore.ID{On: rrefcore.Worker(f.Fork.On), N: uint64(f.Fork.Local), Epoch: rrefcore.Epoch(d.frame.Incarnation)} //nolint:gosec // a counter
		w, code = r.m.Claim(d.peer.ID, fork, owned)
	} else {
		w = rrefcore.Wire{ID: r.id(f.RRef), Fork: r.id(f.Fork), Owner: owner, OwnerEpoch: r.epochOf(owner), Parent: d.peer.ID}
		if old := r.handles[w.Fork]; old != nil && !owned {
			code = rrefcore.Withdrawn
		} else {
			_, code = r.m.Receive(d.peer.ID, w)
		}
	}
	if code == rrefcore.OK {
		if owned {
			core.obj = r.object(w.ID)
		} else {
			core.h = r.enter(w, "received from "+d.peer.Name)
			if confirmed, failed := r.m.State(w.Fork); confirmed {
				core.h.settle(nil)
			} else if failed != rrefcore.OK {
				core.h.settle(core.h.failure(failed))
			}
		}
	}
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
	if code != rrefcore.OK {
		return nil, refFailure("receive", r.id(f.RRef), "", code, nil)
	}
	d.got = append(d.got, core)
	return wrapRef[any](core), nil
}

// confirmed waits until the owners know of all references, so that user code may use them in any way.
func (d *decoding) confirmed(ctx context.Context) error {
	for _, core := range d.got {
		if core.h == nil {
			continue
		}
		select {
		case <-core.h.ready:
		default:
			pl := rpcplace.Of(ctx)
			pl.Pause()
			select {
			case <-core.h.ready:
				pl.Resume()
			case <-ctx.Done():
				pl.Resume()
				return dist.FromContext("rpc: confirm reference", ctx)
			}
		}
		if err := core.state(); err != nil {
			return err
		}
	}
	return nil
}

// release closes the references of a message whose function does not run.
func (d *decoding) release() {
	for _, core := range d.got {
		core.close()
	}
}
