// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pycall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// Call runs a function at another worker, or at this one, and returns its result. It corresponds to
// torch.distributed.rpc.rpc_sync; the package documentation says what names mean.
//
// ctx bounds the call; without a deadline the agent's timeout does. A Go callee gets the deadline, and its context ends
// when the caller's does; a PyTorch callee goes on and its late answer is dropped with the references in it. With the
// context that a handler was given, its slot is free for others while the call waits.
func Call[T any](ctx context.Context, c Caller, to, fn string, args ...any) (T, error) {
	v, err := c.callsBy().call(ctx, to, fn, args)
	return convert[T](fn, v, err)
}

// convert gives a received value the type that the caller asked for.
func convert[T any](fn string, v any, err error) (T, error) {
	if err != nil {
		return *new(T), err
	}
	if t, ok := v.(T); ok {
		return t, nil
	}
	var out T
	if err := Assign(&out, v); err != nil {
		e := cohort.New("rpc: result", cohort.Mismatch, pycall.Detail(err))
		e.Key = fn
		var zero T
		return zero, e
	}
	return out, nil
}

// Async is [Call] that returns at once. It corresponds to torch.distributed.rpc.rpc_async.
func Async[T any](ctx context.Context, c Caller, to, fn string, args ...any) *cohort.Future[T] {
	p := cohort.NewPromise[T]()
	c.callsBy().async(ctx, to, fn, args, func(v any, err error) {
		p.Complete(convert[T](fn, v, err))
	})
	return p.Future()
}

// Await waits for a future within a handler, given the handler's ctx. Meanwhile another handler can use its slot, so
// handlers that wait for each other's calls cannot block each other.
func Await[T any](ctx context.Context, f *cohort.Future[T]) (T, error) {
	if f == nil {
		return *new(T), cohort.New("rpc: await", cohort.InvalidArgument, "the future is nil")
	}
	if !f.Completed() {
		pl := rpcslots.Of(ctx)
		pl.Pause()
		defer pl.Resume()
	}
	return f.Await(ctx)
}

// late is the error of a call whose deadline has passed.
func late(fn string, p *rpcsession.Peer) error {
	e := cohort.New("rpc: call", cohort.DeadlineExceeded, "the deadline has passed")
	e.Key, e.Peer = fn, p.Name
	return e
}

// prepare returns how a call is encoded.
func (a *Agent) prepare(p *rpcsession.Peer, fn string, args []any) *rpcclient.Outgoing {
	t := parseTarget(fn)
	o := &rpcclient.Outgoing{By: a.caller, Op: "call", Mode: "sync", Func: t.shown(fn, args), Peer: p}
	o.Build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		e, wires := a.refs.Encoder(p, toGo)
		m, err := encodeCall(e, t, fn, args)
		if err != nil {
			a.refs.Undecoded(p, *wires)
			return nil, nil, 0, err
		}
		return m, *wires, 0, nil
	}
	return o
}

// encodeCall writes a call of a function by its name.
func encodeCall(e *rpcwire.Encoder, t target, fn string, args []any) (*rpcwire.Message, error) {
	positional, kwargs := splitArgs(args)
	if err := t.check("rpc: call", fn, kwargs); err != nil {
		return nil, err
	}
	if t.isScript() {
		payload, err := e.ScriptCall(rpcwire.ScriptUDF{Schema: t.schema, Name: t.script, Stack: positional})
		return e.Message(rpcwire.ScriptCall, payload), err
	}
	payload, err := e.PythonCall(rpcwire.UDF{Func: t.udf, Args: positional, Kwargs: kwargs}, false)
	return e.Message(rpcwire.PythonCall, payload), err
}

// result reads the answer to a call.
func (a *Agent) result(fn string, p *rpcsession.Peer, x rpcsession.Reply) (any, error) {
	d := a.refs.Decoding(p, x.Frame, x.Msg.Tensors)
	dec := &d.Decoder
	var v any
	var err error
	switch x.Msg.Type {
	case rpcwire.PythonRet:
		v, err = dec.PythonRet(x.Msg.Payload)
	case rpcwire.ScriptRet:
		v, err = dec.ScriptRet(x.Msg.Payload)
	default:
		err = rpcclient.UnexpectedAnswer(fn, p, x.Msg)
	}
	if err != nil {
		d.Abandon(x.Msg)
		return nil, err
	}
	if remote, ok := v.(*rpcwire.RemoteException); ok {
		p.Stats.Errors.Add(1)
		err := raised(p.Name, remote)
		if x.Frame != nil || rpcwire.NotDecoded(remote.Msg) { // a Go worker ignores it for what it has decoded
			a.refs.Undecoded(p, x.Wires)
		}
		if err.Code == cohort.DeadlineExceeded && !x.Due.IsZero() && !time.Now().Before(x.Due) {
			return nil, late(fn, p) // the callee noticed the caller's deadline first
		}
		return nil, rpcclient.Named("rpc: call", fn, p, restoreReason(err))
	}
	return v, nil
}

func (a *Agent) call(ctx context.Context, to, fn string, args []any) (v any, err error) {
	if len(a.cfg.calling) > 0 {
		var end func(error)
		if ctx, end, err = a.cfg.intercept(ctx, a.cfg.calling, callInfo(to, fn, args, false)); err != nil {
			return nil, err
		}
		defer func() { end(err) }()
	}
	if to == a.name {
		return a.callOwn(ctx, fn, args)
	}
	p, err := a.destination(ctx, to)
	if err != nil {
		return nil, err
	}
	return a.callPeer(ctx, a.prepare(p, fn, args))
}

// awaitEarly waits, within the time of its call, until the references in an answer can be claimed.
func (a *Agent) awaitEarly(ctx context.Context, x rpcsession.Reply) {
	if a.refs.Early(x.Frame) {
		bounded, cancel := rpcclient.Until(ctx, x.Due)
		defer cancel()
		a.refs.AwaitEarly(bounded, x.Frame)
	}
}

// callRetried is call for functions of the agents themselves, which may arrive twice at a Go worker.
func (a *Agent) callRetried(ctx context.Context, to, fn string, args []any) error {
	p, err := a.net.Peer(to)
	if err != nil {
		return err
	}
	o := a.prepare(p, fn, args)
	o.Repeat = func() bool { return true }
	_, err = a.callPeer(ctx, o)
	return err
}

func (a *Agent) callPeer(ctx context.Context, o *rpcclient.Outgoing) (any, error) {
	started := a.caller.Begin(ctx, o)
	x, err := a.caller.Exchange(ctx, o)
	var v any
	if err == nil {
		a.awaitEarly(ctx, x)
		v, err = a.result(o.Func, o.Peer, x)
	}
	a.caller.End(o, started, err)
	return v, err
}

// transact sends a request to any worker and returns the answer as it came.
func (a *Agent) transact(ctx context.Context, o *rpcclient.Outgoing) (rpcsession.Reply, error) {
	started := a.caller.Begin(ctx, o)
	var x rpcsession.Reply
	var err error
	if o.Peer != a.self {
		x, err = a.caller.Exchange(ctx, o)
	} else if err = a.caller.Active.Enter(ctx); err == nil {
		x, err = a.server.ExchangeOwn(ctx, o)
		a.caller.Active.Leave()
	}
	a.caller.End(o, started, err)
	return x, err
}

// isGo reports whether a worker is known to be a Go worker on the cohort transport.
func (a *Agent) isGo(name string) bool {
	p, err := a.net.Peer(name)
	if err != nil {
		return false
	}
	return p.SpeaksCohort()
}

func (a *Agent) callOwn(ctx context.Context, fn string, args []any) (any, error) {
	if a.self == nil {
		return nil, rpcsession.ErrClosed("call")
	}
	if err := a.caller.Active.Enter(ctx); err != nil {
		return nil, err
	}
	defer a.caller.Active.Leave()
	return a.callSelf(ctx, a.prepare(a.self, fn, args))
}

// destination finds a worker by name; a client asks the store.
func (a *Agent) destination(ctx context.Context, to string) (*rpcsession.Peer, error) {
	p, err := a.net.Peer(to)
	if err != nil && a.cfg.client {
		return a.lookup(ctx, to)
	}
	return p, err
}

// async starts a call and reports its result exactly once. The call counts as active when async returns, although there may
// be no session yet to send it on: a handler that has started it may return now, and then nothing else shows a shutdown
// that there is something to wait for.
func (a *Agent) async(ctx context.Context, to, fn string, args []any, report func(any, error)) {
	if len(a.cfg.calling) > 0 {
		next, end, err := a.cfg.intercept(ctx, a.cfg.calling, callInfo(to, fn, args, false))
		if err != nil {
			report(nil, err)
			return
		}
		finish := report
		ctx, report = next, func(v any, err error) { end(err); finish(v, err) }
	}
	if err := a.caller.Active.Enter(ctx); err != nil {
		report(nil, err)
		return
	}
	done := func(v any, err error) {
		report(v, err) // which may start another call
		a.caller.Active.Leave()
	}
	if to == a.name {
		if a.self == nil {
			done(nil, rpcsession.ErrClosed("call"))
			return
		}
		o := a.prepare(a.self, fn, args)
		o.Mode = "async"
		giveUp := o.Early(ctx)
		if !a.net.Go(func() { done(a.callSelf(ctx, o)) }) {
			giveUp()
			done(nil, rpcsession.ErrClosed("call"))
		}
		return
	}
	p, err := a.destination(ctx, to)
	if err != nil {
		done(nil, err)
		return
	}
	o := a.prepare(p, fn, args)
	o.Mode = "async"
	read := func(x rpcsession.Reply, err error) {
		var v any
		if err == nil {
			v, err = a.result(o.Func, p, x)
		}
		done(v, err)
	}
	a.post(ctx, o, func(x rpcsession.Reply, err error) {
		if err != nil || !a.refs.Early(x.Frame) || !a.net.Go(func() { a.awaitEarly(ctx, x); read(x, nil) }) {
			read(x, err)
		}
	})
}

// post sends a request that is counted as active, and calls done exactly once. The message is made before it returns.
func (a *Agent) post(ctx context.Context, o *rpcclient.Outgoing, done func(rpcsession.Reply, error)) {
	if c := o.Peer.Current(); c != nil {
		a.caller.Async(ctx, c, o, done)
		return
	}
	giveUp := o.Early(ctx)
	if !a.net.Go(func() {
		bounded, cancel := rpcclient.Until(ctx, a.caller.Deadline(ctx))
		c, err := o.Peer.Connect(bounded)
		cancel()
		if err != nil {
			giveUp()
			done(rpcsession.Reply{}, a.caller.Failed(o, err))
			return
		}
		a.caller.Async(ctx, c, o, done)
	}) {
		giveUp()
		done(rpcsession.Reply{}, rpcsession.ErrClosed("call"))
	}
}

// callSelf runs a function of this worker as if it had come over a wire: values are copied. The caller has counted the call
// as active.
func (a *Agent) callSelf(ctx context.Context, o *rpcclient.Outgoing) (any, error) {
	started := a.caller.Begin(ctx, o)
	x, err := a.server.ExchangeOwn(ctx, o)
	var v any
	if err == nil {
		v, err = a.result(o.Func, a.self, x)
	}
	if err != nil && a.net.Context.Err() != nil {
		err = rpcsession.ErrClosed(o.Op) // the end of the agent has ended the handler, whatever error that returned
	}
	a.caller.End(o, started, err)
	return v, err
}
