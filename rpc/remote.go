// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"reflect"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/rpc/py"
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
	core.Type = reflect.TypeFor[T]()
	return wrapRef[T](a, core), nil
}

// CallMethod calls a method of the object behind a reference, at its owner. A Python owner takes any method; a Go owner
// those of a registered class ([Registry.Class]). ctx is the timeout of this one call. It corresponds to
// rref.rpc_sync(timeout).method(...).
func CallMethod[R, T any](ctx context.Context, ref *Ref[T], method string, args ...any) (R, error) {
	if _, err := ref.held("call method"); err != nil {
		return *new(R), err
	}
	positional, kwargs := splitArgs(args)
	return Call[R](ctx, ref.a, ref.Owner().Name, localInvoke, ref, method, py.Tuple(positional), orEmpty(kwargs))
}

// AsyncMethod is [CallMethod] that returns at once. It corresponds to rref.rpc_async(timeout).method(...).
func AsyncMethod[R, T any](ctx context.Context, ref *Ref[T], method string, args ...any) *cohort.Future[R] {
	if _, err := ref.held("call method"); err != nil {
		failed := cohort.NewPromise[R]()
		failed.Complete(*new(R), err)
		return failed.Future()
	}
	positional, kwargs := splitArgs(args)
	return Async[R](ctx, ref.a, ref.Owner().Name, localInvoke, ref, method, py.Tuple(positional), orEmpty(kwargs))
}

// RemoteMethod calls a method and leaves its result at the owner. It corresponds to rref.remote(timeout).method(...).
func RemoteMethod[R, T any](ctx context.Context, ref *Ref[T], method string, args ...any) (*Ref[R], error) {
	if _, err := ref.held("call method"); err != nil {
		return nil, err
	}
	positional, kwargs := splitArgs(args)
	return Remote[R](ctx, ref.a, ref.Owner().Name, localInvoke, ref, method, py.Tuple(positional), orEmpty(kwargs))
}

func orEmpty(d *py.Dict) *py.Dict {
	if d == nil {
		return &py.Dict{}
	}
	return d
}

func (a *Agent) remote(ctx context.Context, to, fn string, args []any) (hold *rpcref.Hold, err error) {
	if len(a.cfg.calling) > 0 {
		var end func(error)
		if ctx, end, err = a.cfg.intercept(ctx, a.cfg.calling, callInfo(to, fn, args, true)); err != nil {
			return nil, err
		}
		defer func() { end(err) }()
	}
	if to == a.name {
		return a.remoteSelf(ctx, fn, args)
	}
	p, err := a.net.Peer(to)
	if err != nil {
		return nil, err
	}
	r, o := a.refs, &rpcclient.Outgoing{By: a.caller, Op: "remote", Peer: p}
	t := parseTarget(fn)
	o.Func = t.shown(fn, args)
	h, company, err := r.Create(p, o.Func)
	if err != nil {
		return nil, err
	}
	core := r.HoldHandle(h, t.isScript())
	if err = a.caller.Active.Enter(ctx); err != nil { // here and not with the session that it is sent on, as for an asynchronous call
		r.CreateFailed(h, err)
		return core, nil
	}
	a.creates(o, h, t, fn, args)
	if c := p.Current(); c != nil {
		if company && c.Link != nil {
			r.FlushOn(p, c)
		}
		a.create(ctx, c, o, h)
	} else {
		a.connectAndCreate(ctx, o, h)
	}
	return core, nil
}

// creates sets how a creating call is encoded.
func (a *Agent) creates(o *rpcclient.Outgoing, h *rpcref.Handle, t target, fn string, args []any) {
	r := a.refs
	o.Repeat = func() bool { return r.CreationPending(h) }
	o.Build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		e, wires := r.Encoder(o.Peer, toGo)
		m, err := encodeRemote(e, t, fn, args, rpcwire.RRefPair{
			RRef: rpcref.Global(h.Wire.ID), Fork: rpcref.Global(h.Wire.Fork),
			Key: h.Wire.Key,
		})
		if err != nil {
			r.Undecoded(o.Peer, *wires)
			return nil, nil, 0, err
		}
		return m, *wires, 0, nil
	}
}

// connectAndCreate sends the creating call when there is a session.
func (a *Agent) connectAndCreate(ctx context.Context, o *rpcclient.Outgoing, h *rpcref.Handle) {
	giveUp := o.Early(ctx)
	failed := func(err error) {
		giveUp()
		a.refs.CreateFailed(h, err)
		a.caller.Active.Leave()
	}
	if !a.net.Go(func() {
		creation, release := creationContext(ctx)
		bounded, cancel := rpcclient.Until(creation, a.caller.Deadline(ctx))
		c, err := o.Peer.Connect(bounded)
		cancel()
		release()
		if err != nil {
			failed(err)
			return
		}
		a.create(ctx, c, o, h)
	}) {
		failed(rpcsession.ErrClosed("remote"))
	}
}

// create sends the creating call.
func (a *Agent) create(ctx context.Context, c *rpcsession.Conn, o *rpcclient.Outgoing, h *rpcref.Handle) {
	r := a.refs
	ctx, release := creationContext(ctx)
	a.caller.AsyncRetried(ctx, c, o, func(x rpcsession.Reply, err error) {
		release()
		if err == nil && x.Msg.Type != rpcwire.RemoteRet {
			err = rpcclient.UnexpectedAnswer(o.Func, o.Peer, x.Msg)
		}
		switch {
		case err == nil:
			r.CreateConfirmed(h)
		case x.Msg != nil, errors.Is(err, tensorpipe.ErrUnsent): // the owner has refused it, or never receives it
			r.CreateFailed(h, err)
		case cohort.CodeOf(err) == cohort.DeadlineExceeded, cohort.CodeOf(err) == cohort.Canceled:
			r.CreateTimedOut(h, err)
		case cohort.CodeOf(err) == cohort.PeerLost:
			r.CreateLost(h, err)
		default:
			r.CreateFailed(h, err)
		}
	})
}

// creationContext is the context of a creation that a handler begins: it ends when the handler's caller gives up, but
// not when the handler returns, perhaps with the reference as its result.
func creationContext(ctx context.Context) (creation context.Context, release func()) {
	if rpcslots.Of(ctx) == nil {
		return ctx, func() {}
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, rpcslots.ErrDone) {
			cancel(cause)
		}
	})
	if deadline, ok := ctx.Deadline(); ok {
		bounded, end := context.WithDeadline(detached, deadline)
		return bounded, func() { stop(); end(); cancel(nil) }
	}
	return detached, func() { stop(); cancel(nil) }
}

func encodeRemote(e *rpcwire.Encoder, t target, fn string, args []any, pair rpcwire.RRefPair) (*rpcwire.Message, error) {
	positional, kwargs := splitArgs(args)
	if err := t.check("rpc: remote", fn, kwargs); err != nil {
		return nil, err
	}
	if t.isScript() {
		payload, err := e.ScriptRemoteCall(rpcwire.RemoteScriptUDF{
			ScriptUDF: rpcwire.ScriptUDF{Schema: t.schema, Name: t.script, Stack: positional}, RRefPair: pair,
		})
		return e.Message(rpcwire.ScriptRemoteCall, payload), err
	}
	payload, err := e.PythonRemoteCall(rpcwire.RemoteUDF{UDF: rpcwire.UDF{Func: t.udf, Args: positional, Kwargs: kwargs}, RRefPair: pair})
	return e.Message(rpcwire.PythonRemoteCall, payload), err
}

// remoteSelf makes an object of this worker by one of its own functions.
func (a *Agent) remoteSelf(ctx context.Context, fn string, args []any) (*rpcref.Hold, error) {
	r, t := a.refs, parseTarget(fn)
	name := t.shown(fn, args)
	obj := r.OwnPending(name)
	if obj == nil {
		return nil, rpcsession.ErrClosed("remote")
	}
	core := r.HoldOwn(obj, "")
	o := &rpcclient.Outgoing{By: a.caller, Op: "remote", Func: name, Peer: a.self}
	o.Build = func(bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		e, wires := r.Encoder(a.self, true)
		m, err := encodeRemote(e, t, fn, args, rpcwire.RRefPair{RRef: rpcref.Global(obj.ID)})
		return m, *wires, 0, err
	}
	started := a.caller.Begin(ctx, o)
	err := a.server.CreateOwn(ctx, o, obj)
	a.caller.End(o, started, err)
	if err != nil {
		r.Release(obj)
		core.Close()
		return nil, err
	}
	return core, nil
}
