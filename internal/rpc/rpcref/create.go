// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Own makes an object of this worker that has its value from the start. It returns nil when the worker has closed.
func (r *Refs) Own(where string) *Object {
	failpoint.At("rpc.refs.own")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return nil
	}
	o := r.object(r.mu.m.Own())
	o.where = where
	return o
}

// OwnPending makes an object of this worker that a function of its own will make. The function holds it too, until Created or
// Release is called. It returns nil when the worker has closed.
func (r *Refs) OwnPending(where string) *Object {
	failpoint.At("rpc.refs.own_pending")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return nil
	}
	id := r.mu.m.OwnPending()
	o := r.object(id)
	o.where = where
	r.mu.m.HoldLocal(id)
	return o
}

// Release ends the hold of the function of OwnPending.
func (r *Refs) Release(o *Object) {
	r.step(func(m *rrefcore.Machine) { m.ReleaseLocal(o.ID) })
}

// HoldOwn returns the hold that comes with an own object.
func (r *Refs) HoldOwn(o *Object, typeName string) *Hold {
	return &Hold{Refs: r, Object: o, Named: typeName}
}

// HoldHandle returns the hold that comes with a handle.
func (r *Refs) HoldHandle(h *Handle, script bool) *Hold {
	return &Hold{Refs: r, Handle: h, Script: script}
}

// Create makes the handle of an object that another worker is about to be asked for. company says that so much waits to be
// sent there that the creating call should take it along.
func (r *Refs) Create(p *rpcsession.Peer, where string) (h *Handle, company bool, err error) {
	failpoint.At("rpc.refs.create")
	r.mu.Lock()
	if r.mu.closed {
		r.mu.Unlock()
		return nil, false, rpcsession.ErrClosed("remote")
	}
	r.known(p.ID)
	w, code := r.mu.m.Create(p.ID)
	if code == rrefcore.OK {
		h = r.enter(w, where)
	}
	e := r.take(true) // the call itself registers the object; the announcement must only precede a delete or cancel
	company = r.mu.m.Unsent(p.ID) >= ControlRide
	r.mu.Unlock()
	r.perform(e)
	if code != rrefcore.OK {
		return nil, false, r.cfg.Failure("create", rrefcore.ID{On: r.cfg.ID}, p.Name, code, nil)
	}
	return h, company, nil
}

// CreationPending reports whether nothing is known yet of a creating call.
func (r *Refs) CreationPending(h *Handle) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	confirmed, code := r.mu.m.State(h.Wire.Fork)
	return !confirmed && code == rrefcore.OK
}

// CreateConfirmed is told that the owner has answered a creating call.
func (r *Refs) CreateConfirmed(h *Handle) {
	r.stepLazy(func(m *rrefcore.Machine) { m.CreateReplied(h.Wire.Fork, true) })
}

// CreateTimedOut is told that a creating call was given up; err says why.
func (r *Refs) CreateTimedOut(h *Handle, err error) {
	failpoint.At("rpc.refs.timed_out")
	r.mu.Lock()
	h.cause = err
	r.mu.Unlock()
	r.step(func(m *rrefcore.Machine) { m.CreateTimedOut(h.Wire.Fork) })
}

// CreateFailed is told that a creating call has failed.
func (r *Refs) CreateFailed(h *Handle, err error) {
	r.createEnds(h, err, func(m *rrefcore.Machine) { m.CreateReplied(h.Wire.Fork, false) })
}

// CreateLost is told that the session has ended before a creating call was answered.
func (r *Refs) CreateLost(h *Handle, err error) {
	r.createEnds(h, err, func(m *rrefcore.Machine) { m.CreateLost(h.Wire.Fork) })
}

func (r *Refs) createEnds(h *Handle, err error, fn func(m *rrefcore.Machine)) {
	r.step(func(m *rrefcore.Machine) {
		if confirmed, _ := m.State(h.Wire.Fork); confirmed {
			return // only its answer was lost: the owner has said so on the control stream
		}
		if h.cause == nil { // else it was given up before
			h.cause = err
		}
		fn(m)
	})
}

// ErrCalled is the answer to a creating call that has come before, on a link that was cut.
var ErrCalled = errors.New("the creating call has arrived already")

// errTaken is why a PyTorch worker whose ids begin anew cannot create an object: two would be one.
var errTaken = errors.New("an object that a former worker of this rank has made has its id and is still in use")

// CallArrived asks the machine whether a creating call of p may run, and returns the place of its object. life is the start
// of a Go creator; PyTorch's have none.
func (r *Refs) CallArrived(p *rpcsession.Peer, life rrefcore.Epoch, pair rpcwire.RRefPair, fn string,
	cancel context.CancelCauseFunc,
) (*Object, error) {
	id, root := r.id(pair.RRef), r.id(pair.Fork)
	if life != 0 { // the creator is the sender
		id.Epoch, root.Epoch = life, life
	}
	failpoint.At("rpc.refs.call_arrived")
	r.mu.Lock()
	r.known(p.ID)
	if o := r.mu.objects[id]; o != nil && o.called && life != 0 {
		r.mu.Unlock()
		return nil, ErrCalled
	}
	code, cause := rrefcore.LeaseExpired, error(nil)
	if !r.Former(p) {
		code = r.mu.m.CallArrived(p.ID, id, root, pair.Key)
	}
	if code == rrefcore.CreateFailed {
		cause = errTaken
	}
	var o *Object
	if code == rrefcore.OK {
		o = r.object(id)
		o.called = true
		o.where, o.by = fn, p.Name
	}
	e := r.take(true) // the answer confirms it as well
	r.mu.Unlock()
	r.perform(e)
	if o == nil {
		return nil, r.cfg.Failure("create", id, r.cfg.Name, code, cause)
	}
	o.Begin(cancel)
	return o, nil
}

// Created gives an object the result of its creating call. own says that the call was one of this worker to itself, which
// has held the object meanwhile.
func (r *Refs) Created(o *Object, v any, err error, own bool) {
	o.Set(v, err)
	r.step(func(m *rrefcore.Machine) {
		m.Valued(o.ID)
		if own {
			m.ReleaseLocal(o.ID)
		}
	})
}
