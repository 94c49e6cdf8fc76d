// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/internal/tensorpipe"
)

// Remote runs a function at another worker, or at this one, and leaves the result there. It returns a reference to it at
// once, before the function has run or even arrived; an error of the function shows at Fetch. It corresponds to
// torch.distributed.rpc.remote.
//
// As in PyTorch, tensors among the arguments must stay as they are until the reference is confirmed ([Ref.Confirmed]).
//
// ctx bounds the creation: when it ends before the owner has confirmed it, the reference fails for every use and a Go
// owner cancels the function. A handler may use the context it was given and return the reference: its own end does not
// end the creation.
func Remote[T any](ctx context.Context, a *Agent, to, fn string, args ...any) (*Ref[T], error) {
	core, err := a.remote(ctx, to, fn, args)
	if err != nil {
		return nil, err
	}
	core.typeName = typeNameOf[T]()
	return wrapRef[T](core), nil
}

// CallMethod calls a method of the object behind a reference, at its owner. A Python owner takes any method; a Go owner
// those of a registered class ([Registry.Class]). It corresponds to rref.rpc_sync().method(...).
func CallMethod[R, T any](ctx context.Context, ref *Ref[T], method string, args ...any) (R, error) {
	positional, kwargs := splitArgs(args)
	return Call[R](ctx, ref.c.a, ref.Owner().Name, localInvoke, ref, method, Tuple(positional), orEmpty(kwargs))
}

// AsyncMethod is [CallMethod] that returns at once. It corresponds to rref.rpc_async().method(...).
func AsyncMethod[R, T any](ctx context.Context, ref *Ref[T], method string, args ...any) *dist.Future[R] {
	positional, kwargs := splitArgs(args)
	return Async[R](ctx, ref.c.a, ref.Owner().Name, localInvoke, ref, method, Tuple(positional), orEmpty(kwargs))
}

// RemoteMethod calls a method and leaves its result at the owner. It corresponds to rref.remote().method(...).
func RemoteMethod[R, T any](ctx context.Context, ref *Ref[T], method string, args ...any) (*Ref[R], error) {
	positional, kwargs := splitArgs(args)
	return Remote[R](ctx, ref.c.a, ref.Owner().Name, localInvoke, ref, method, Tuple(positional), orEmpty(kwargs))
}

func orEmpty(d *Dict) *Dict {
	if d == nil {
		return &Dict{}
	}
	return d
}

func (a *Agent) remote(ctx context.Context, to, fn string, args []any) (*refCore, error) {
	if a.cfg.guest {
		return nil, dist.New("rpc: remote", dist.NotSupported, "a guest holds no references")
	}
	if to == a.name {
		return a.remoteSelf(ctx, fn, args)
	}
	p, err := a.net.Peer(to)
	if err != nil {
		return nil, err
	}
	r := a.refs
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, rpclink.ErrClosed("remote")
	}
	r.known(p.ID)
	w, code := r.m.Create(p.ID)
	var h *handle
	if code == rrefcore.OK {
		h = r.enter(w, fn)
	}
	e := r.take(true) // the call itself registers the object; the announcement must only precede a delete or cancel
	company := r.m.Unsent(p.ID) >= controlRide
	r.mu.Unlock()
	r.perform(e)
	if code != rrefcore.OK {
		return nil, refFailure("create", rrefcore.ID{On: a.id}, to, code, nil)
	}
	core := &refCore{a: a, h: h, script: parseTarget(fn).isScript()}
	if err = a.calls.enter(ctx); err != nil { // here and not with the session that it is sent on, as for an asynchronous call
		r.createFailed(h, err)
		return core, nil
	}
	o := a.creation(p, h, fn, args)
	if c := p.Current(); c != nil {
		if company && c.Link != nil {
			r.flushOn(p, c)
		}
		a.create(ctx, c, o, h)
		return core, nil
	}
	giveUp := o.early(ctx)
	if !a.net.Own(func() {
		creation, release := creationContext(ctx)
		bounded, cancel := contextUntil(creation, a.deadline(ctx))
		c, err := p.Connect(bounded)
		cancel()
		release()
		if err != nil {
			giveUp()
			r.createFailed(h, err)
			a.calls.leave()
			return
		}
		a.create(ctx, c, o, h)
	}) {
		giveUp()
		r.createFailed(h, rpclink.ErrClosed("remote"))
		a.calls.leave()
	}
	return core, nil
}

// creation returns how a creating call is encoded.
func (a *Agent) creation(p *rpclink.Peer, h *handle, fn string, args []any) *outgoing {
	r := a.refs
	pair := rpcwire.RRefPair{RRef: global(h.wire.ID), Fork: global(h.wire.Fork)}
	o := &outgoing{a: a, op: "remote", fn: fn, peer: p}
	o.repeat = func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		confirmed, code := r.m.State(h.wire.Fork)
		return !confirmed && code == rrefcore.OK
	}
	o.build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		e, wires := r.encoder(p, toGo)
		m, err := encodeRemote(e, fn, args, pair)
		if err != nil {
			r.undecoded(p, *wires)
			return nil, nil, 0, err
		}
		return m, *wires, 0, nil
	}
	return o
}

// create sends the creating call.
func (a *Agent) create(ctx context.Context, c *rpclink.Conn, o *outgoing, h *handle) {
	r, p, fn := a.refs, o.peer, o.fn
	ctx, release := creationContext(ctx)
	a.asyncLasting(ctx, c, o, func(x rpclink.Reply, err error) {
		release()
		if err == nil && x.Msg.Type != rpcwire.RemoteRet {
			err = unexpectedAnswer(fn, p, x.Msg)
		}
		switch {
		case err == nil:
			r.stepLazy(func(m *rrefcore.Machine) { m.CreateReplied(h.wire.Fork, true) })
		case errors.Is(err, tensorpipe.ErrUnsent): // the owner never hears of it
			r.createFailed(h, err)
		case dist.CodeOf(err) == dist.DeadlineExceeded, dist.CodeOf(err) == dist.Canceled:
			r.mu.Lock()
			h.cause = err
			r.mu.Unlock()
			r.step(func(m *rrefcore.Machine) { m.CreateTimedOut(h.wire.Fork) })
		default:
			r.createFailed(h, err)
		}
	})
}

// creationContext is the context of a creation that a handler begins: it ends when the handler's caller gives up, but
// not when the handler returns, perhaps with the reference as its result.
func creationContext(ctx context.Context) (creation context.Context, release func()) {
	if rpcplace.Of(ctx) == nil {
		return ctx, func() {}
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, rpcplace.ErrDone) {
			cancel(cause)
		}
	})
	if deadline, ok := ctx.Deadline(); ok {
		bounded, end := context.WithDeadline(detached, deadline)
		return bounded, func() { stop(); end(); cancel(nil) }
	}
	return detached, func() { stop(); cancel(nil) }
}

func (r *refs) createFailed(h *handle, err error) {
	r.step(func(m *rrefcore.Machine) {
		if confirmed, _ := m.State(h.wire.Fork); confirmed {
			return // only its answer was lost: the owner has said so on the control stream
		}
		h.cause = err
		m.CreateReplied(h.wire.Fork, false)
	})
}

func encodeRemote(e *rpcwire.Encoder, fn string, args []any, pair rpcwire.RRefPair) (*rpcwire.Message, error) {
	t := parseTarget(fn)
	positional, kwargs := splitArgs(args)
	if err := t.check("rpc: remote", fn, kwargs); err != nil {
		return nil, err
	}
	if t.isScript() {
		payload, err := e.ScriptRemoteCall(rpcwire.RemoteScriptUDF{
			ScriptUDF: rpcwire.ScriptUDF{Schema: t.schema, Name: t.script, Stack: positional}, RRefPair: pair,
		})
		return &rpcwire.Message{Type: rpcwire.ScriptRemoteCall, Payload: payload, Tensors: e.Tensors, Holders: e.Holders}, err
	}
	payload, err := e.PythonRemoteCall(rpcwire.RemoteUDF{UDF: rpcwire.UDF{Func: t.udf, Args: positional, Kwargs: kwargs}, RRefPair: pair})
	return &rpcwire.Message{Type: rpcwire.PythonRemoteCall, Payload: payload, Tensors: e.Tensors, Holders: e.Holders}, err
}

// remoteSelf makes an object of this worker by one of its own functions.
func (a *Agent) remoteSelf(ctx context.Context, fn string, args []any) (*refCore, error) {
	r := a.refs
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, rpclink.ErrClosed("remote")
	}
	id := r.m.OwnPending()
	obj := r.object(id)
	obj.where = fn
	r.m.HoldLocal(id) // the running function needs it too
	r.mu.Unlock()
	core := &refCore{a: a, obj: obj}
	o := &outgoing{a: a, op: "remote", fn: fn, peer: a.self}
	o.build = func(bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		e, wires := r.encoder(a.self, true)
		m, err := encodeRemote(e, fn, args, rpcwire.RRefPair{RRef: global(id)})
		return m, *wires, 0, err
	}
	started := a.begin(o)
	err := a.deliverCreation(ctx, o, obj)
	a.end(o, started, err)
	if err != nil {
		r.step(func(m *rrefcore.Machine) { m.ReleaseLocal(id) })
		core.close()
		return nil, err
	}
	return core, nil
}

// deliverCreation hands a creating call of this worker to itself.
func (a *Agent) deliverCreation(ctx context.Context, o *outgoing, obj *object) error {
	m, wires, _, err := o.make(ctx, true)
	if err == nil {
		m.Tensors, err = cloneTensors(m.Tensors)
	}
	if err != nil {
		o.lost()
		a.refs.undelivered(a.self, wires)
		return err
	}
	if err = a.calls.enter(ctx); err != nil {
		o.lost()
		a.refs.undelivered(a.self, wires)
		return err
	}
	r := &request{Incoming: rpclink.Incoming{Peer: a.self, Kind: m.Type, Payload: m.Payload, Tensors: m.Tensors}, a: a, own: obj, uncount: sync.OnceFunc(a.calls.leave)}
	r.local = func(m *rpcwire.Message, _ error) {
		if m.Type != rpcwire.Exception {
			_ = o.answered(m)
			return
		}
		o.lost() // it was refused
		a.refs.created(obj, nil, exceptionError("rpc: remote", o.fn, a.name, m.Payload), true)
		r.uncount()
	}
	a.dispatch(r)
	return nil
}

// errCalled is the answer to a creating call that has come before, on a link that was cut.
var errCalled = errors.New("the creating call has arrived already")

// callArrived asks the machine whether a creating call may run, and returns the place of its object.
func (r *refs) callArrived(req *request, pair rpcwire.RRefPair, fn string, cancel context.CancelCauseFunc) (*object, error) {
	if req.own != nil {
		req.own.begin(cancel)
		return req.own, nil
	}
	if req.Peer.ID < 0 {
		return nil, dist.New("rpc: remote", dist.NotSupported, "a guest holds no references")
	}
	id, root := r.id(pair.RRef), r.id(pair.Fork)
	if req.Frame != nil { // the creator is the sender
		id.Epoch, root.Epoch = rrefcore.Epoch(req.Frame.Incarnation), rrefcore.Epoch(req.Frame.Incarnation)
	}
	r.mu.Lock()
	r.known(req.Peer.ID)
	if o := r.objects[id]; o != nil && o.called && req.cohort() {
		r.mu.Unlock()
		return nil, errCalled
	}
	code := r.m.CallArrived(req.Peer.ID, id, root)
	var o *object
	if code == rrefcore.OK {
		o = r.object(id)
		o.called = true
		o.where = fn + " for " + req.Peer.Name
	}
	e := r.take(true) // the answer confirms it as well
	r.mu.Unlock()
	r.perform(e)
	if o == nil {
		return nil, refFailure("create", id, r.a.name, code, nil)
	}
	o.begin(cancel)
	return o, nil
}

// begin makes the function that makes the value cancellable.
func (o *object) begin(cancel context.CancelCauseFunc) {
	o.mu.Lock()
	if !o.done {
		o.cancel = cancel
	}
	o.mu.Unlock()
}

// answerCreated tells a creator that its object is here.
func (a *Agent) answerCreated(req *request, j *job) {
	if req.cohort() { // its type says it all
		req.answer(&rpcwire.Message{Type: rpcwire.RemoteRet}, nil)
		return
	}
	payload, err := j.remote.Encode()
	if err != nil {
		req.answer(req.failure(err), nil)
		return
	}
	req.answer(&rpcwire.Message{Type: rpcwire.RemoteRet, Payload: payload}, nil)
}

// created gives an object the result of its creating call. own says that the call was one of this worker to itself, which
// has held the object meanwhile.
func (r *refs) created(o *object, v any, err error, own bool) {
	o.set(v, err)
	r.step(func(m *rrefcore.Machine) {
		m.Valued(o.id)
		if own {
			m.ReleaseLocal(o.id)
		}
	})
}

// countCreation counts the function of a creating call as active from before its answer. The creator counts the call itself
// until then, and a PyTorch creator gets the answer when the function has ended. So there is no moment at which the
// workers of a static world could leave while it runs.
func (a *Agent) countCreation(ctx context.Context, answeredEarly bool) (uncount func()) {
	if !answeredEarly || a.cfg.worldSize == 0 || a.calls.enter(ctx) != nil {
		return func() {}
	}
	return a.calls.leave
}

// runRemote runs the function of a creating call and stores its result.
func (a *Agent) runRemote(ctx context.Context, req *request, j *job, o *object, cancel context.CancelCauseFunc, started time.Time, end func()) {
	answer := func() { a.answerCreated(req, j) }
	toGo := req.cohort()
	uncount := req.uncount
	if uncount == nil {
		uncount = a.countCreation(ctx, toGo)
	}
	if toGo {
		answer() // the object exists; its value's fate is another matter
	}
	var once atomic.Bool
	done := func(v any, err error) {
		if !once.CompareAndSwap(false, true) {
			return
		}
		req.took(started)
		if remote, ok := err.(*RemoteError); ok && remote.Worker == "" { //nolint:errorlint // only the handler's own
			said := *remote
			said.Worker = a.name
			err = &said
		}
		a.refs.created(o, v, err, req.own != nil)
		if !toGo {
			answer()
		}
		end()
		cancel(rpcplace.ErrDone)
		uncount()
	}
	err := j.err
	if err == nil {
		if err = req.decoder.confirmed(ctx); err == nil {
			err = a.find(j)
		}
	}
	if err != nil {
		req.decoder.release()
		a.drop(req)
		done(nil, err)
		return
	}
	if !a.invoke(ctx, j, done) {
		req.decoder.release()
	}
	if !once.Load() {
		rpcplace.Of(ctx).Pause()
	}
}
