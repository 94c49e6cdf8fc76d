// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcref"
	"github.com/cohort-dist/cohort/internal/rpcseam"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/observe"
)

// Call runs a function at another worker, or at this one, and returns its result. It corresponds to
// torch.distributed.rpc.rpc_sync; the package documentation says what names mean.
//
// ctx bounds the call; without a deadline the agent's timeout does. A Go callee gets the deadline, and its context ends
// when the caller's does; a PyTorch callee goes on and its late answer is dropped. With the context that a handler was
// given, its place is free for others while the call waits.
func Call[T any](ctx context.Context, a *Agent, to, fn string, args ...any) (T, error) {
	v, err := a.call(ctx, to, fn, args)
	return convert[T](fn, v, err)
}

// convert gives a received value the type that the caller asked for.
func convert[T any](fn string, v any, err error) (T, error) {
	var out T
	if err != nil {
		return out, err
	}
	if t, ok := v.(T); ok {
		return t, nil
	}
	if err := rpcwire.Assign(&out, v); err != nil {
		e := dist.New("rpc: result", dist.Mismatch, detailOf(err))
		e.Key = fn
		var zero T
		return zero, e
	}
	return out, nil
}

// Async is [Call] that returns at once. It corresponds to torch.distributed.rpc.rpc_async.
func Async[T any](ctx context.Context, a *Agent, to, fn string, args ...any) *dist.Future[T] {
	p := dist.NewPromise[T]()
	a.async(ctx, to, fn, args, func(v any, err error) {
		p.Complete(convert[T](fn, v, err))
	})
	return p.Future()
}

// Await waits for a future with a handler's context: its place is free for others meanwhile, so that handlers which wait
// for each other's calls cannot block each other.
func Await[T any](ctx context.Context, f *dist.Future[T]) (T, error) {
	if !f.Completed() {
		pl := rpcplace.Of(ctx)
		pl.Pause()
		defer pl.Resume()
	}
	return f.Await(ctx)
}

// outgoing is a request that is about to be sent. build makes it, for a Go worker or a PyTorch one.
type outgoing struct {
	a      *Agent
	op, fn string
	mode   string // of a call
	peer   *rpclink.Peer
	build  func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error)
	repeat func() bool // of a request that may arrive twice: whether its answer is still wanted when its link was lost

	plain    bool              // not for the extension
	ready    *built            // built early
	exchange *rpcseam.Exchange // how the extension takes part
}

// built is a request that was built before there was a session to send it on.
type built struct {
	m     *rpcwire.Message
	wires []rrefcore.Wire
	flags uint8
	toGo  bool
	err   error
}

// early builds a request before there is a session to send it on: the caller may close or change its arguments as soon
// as the call has returned. giveUp is for a request that is not sent at all.
func (o *outgoing) early(ctx context.Context) (giveUp func()) {
	refs := o.a.refs
	b := &built{toGo: o.peer.SpeaksCohort() || o.peer == o.a.self}
	b.m, b.wires, b.flags, b.err = o.make(ctx, b.toGo)
	o.ready = b
	return func() {
		o.lost()
		refs.Undecoded(o.peer, b.wires)
	}
}

// deadline returns when a call ends: with its ctx, or after the agent's timeout.
func (a *Agent) deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	if a.Timeout() > 0 {
		return time.Now().Add(a.Timeout())
	}
	return time.Time{}
}

var answerChannels = sync.Pool{New: func() any { return make(chan rpclink.Reply, 1) }} // empty channels: no shared state

// callTimers are stopped timers; since Go 1.23 a stopped timer's channel is empty.
var callTimers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// exchange sends a request and waits for its answer.
func (a *Agent) exchange(ctx context.Context, o *outgoing) (rpclink.Reply, error) {
	if err := ctx.Err(); err != nil {
		return rpclink.Reply{}, callError("rpc: "+o.op, o.fn, o.peer.Name, dist.FromContext("rpc: "+o.op, ctx))
	}
	if err := a.calls.enter(ctx); err != nil {
		return rpclink.Reply{}, err
	}
	defer a.calls.leave()
	deadline := a.deadline(ctx)
	for tries := 0; ; tries++ {
		c := o.peer.Current()
		if c == nil {
			var err error
			bounded, cancel := contextUntil(ctx, deadline)
			c, err = o.peer.Connect(bounded)
			cancel()
			if err != nil {
				return rpclink.Reply{}, a.failed(o, err)
			}
		}
		x, again, err := a.exchangeOn(ctx, c, o, deadline)
		if err == nil || !again || tries >= maxRepeats || !a.restBefore(ctx, tries) {
			return x, err
		}
	}
}

// exchangeOn is exchange on one session. again says that the session had ended, and the request may be sent on another.
func (a *Agent) exchangeOn(ctx context.Context, c *rpclink.Conn, o *outgoing, deadline time.Time) (x rpclink.Reply, again bool, err error) {
	m, wires, flags, err := o.make(ctx, c.Cohort())
	if err != nil {
		return rpclink.Reply{}, false, err
	}
	a.refs.FlushNow(o.peer, wires)
	ch := answerChannels.Get().(chan rpclink.Reply) //nolint:errcheck,forcetypeassert // only channels are put there
	id, err := c.Begin(ctx, m, &rpclink.Pending{Ch: ch}, rpcref.HeaderForks(wires), flags, deadline)
	if err != nil {
		a.refs.Undecoded(o.peer, wires)
		return rpclink.Reply{}, id == rpclink.Unsent || o.again(c, err), a.failed(o, err)
	}
	pl := rpcplace.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	var own bool
	if x, own = c.Await(id); own {
		answerChannels.Put(ch)
		x.Due = deadline
		return a.receivedOn(c, o, x, wires)
	}
	var timeout <-chan time.Time
	if _, has := ctx.Deadline(); !has && !deadline.IsZero() {
		timer := callTimers.Get().(*time.Timer) //nolint:errcheck,forcetypeassert // only timers are put there
		timer.Reset(time.Until(deadline))
		defer func() { timer.Stop(); callTimers.Put(timer) }()
		timeout = timer.C
	}
	select {
	case x = <-ch:
		answerChannels.Put(ch)
		x.Due = deadline
		return a.receivedOn(c, o, x, wires)
	case <-ctx.Done():
		err = dist.FromContext("rpc: "+o.op, ctx)
	case <-timeout:
		err = timedOut(o.op, a.Timeout())
	}
	if !c.Forget(id) { // the answer came at this moment
		x = <-ch
		answerChannels.Put(ch)
		x.Due = deadline
		return a.receivedOn(c, o, x, wires)
	}
	answerChannels.Put(ch)
	c.Cancel(id)
	a.refs.Undelivered(o.peer, wires)
	return rpclink.Reply{}, false, a.failed(o, err)
}

func (a *Agent) receivedOn(c *rpclink.Conn, o *outgoing, x rpclink.Reply, wires []rrefcore.Wire) (rpclink.Reply, bool, error) {
	lost := x.Err
	x, err := a.received(o, x, wires)
	return x, lost != nil && o.again(c, lost), err
}

func timedOut(op string, limit time.Duration) error {
	return dist.Newf("rpc: "+op, dist.DeadlineExceeded, "RPC ran for more than set timeout (%d ms)", limit.Milliseconds())
}

// late is the error of a call whose deadline has passed.
func late(fn string, p *rpclink.Peer) error {
	e := dist.New("rpc: call", dist.DeadlineExceeded, "the deadline has passed")
	e.Key, e.Peer = fn, p.Name
	return e
}

func contextUntil(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	if deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// received looks at what came back.
func (a *Agent) received(o *outgoing, x rpclink.Reply, wires []rrefcore.Wire) (rpclink.Reply, error) {
	if x.Err != nil {
		a.refs.Undelivered(o.peer, wires)
		return x, a.failed(o, x.Err)
	}
	if x.Msg.Type == rpcwire.Exception {
		err := exceptionError("rpc: "+o.op, o.fn, o.peer.Name, x.Msg.Payload)
		a.refs.Undelivered(o.peer, wires)
		return x, a.failed(o, err)
	}
	x.Wires = wires
	if err := o.answered(x.Msg); err != nil {
		return x, a.failed(o, err)
	}
	return x, nil
}

func (a *Agent) failed(o *outgoing, err error) error {
	o.lost()
	o.peer.Stats.Errors.Add(1)
	switch err.(type) { //nolint:errorlint // made here
	case *RemoteError, *RefError:
		return err
	}
	if a.net.Context.Err() != nil && dist.CodeOf(err) != dist.DeadlineExceeded {
		return rpclink.ErrClosed(o.op)
	}
	e := dist.Wrap("rpc: "+o.op, dist.Unavailable, err)
	e.Key, e.Peer = o.fn, o.peer.Name
	if inner, ok := err.(*dist.Error); ok { //nolint:errorlint // only the outermost
		e.Detail = inner.Detail
		if e.Detail == "" && inner.Err != nil {
			e.Detail = inner.Err.Error()
		}
	}
	if o.peer.ID >= 0 {
		e.Rank = dist.Rank(o.peer.ID)
	}
	return e
}

func unexpectedAnswer(fn string, p *rpclink.Peer, m *rpcwire.Message) error {
	e := dist.Newf("rpc: call", dist.Protocol, "answered by %v", m.Type)
	e.Key, e.Peer = fn, p.Name
	return e
}

// prepare returns how a call is encoded.
func (a *Agent) prepare(p *rpclink.Peer, fn string, args []any) *outgoing {
	o := &outgoing{a: a, op: "call", mode: "sync", fn: fn, peer: p}
	o.build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		e, wires := a.refs.Encoder(p, toGo)
		m, err := encodeCall(e, fn, args)
		if err != nil {
			a.refs.Undecoded(p, *wires)
			return nil, nil, 0, err
		}
		return m, *wires, 0, nil
	}
	return o
}

// encodeCall writes a call of a function by its name.
func encodeCall(e *rpcwire.Encoder, fn string, args []any) (*rpcwire.Message, error) {
	t := parseTarget(fn)
	positional, kwargs := splitArgs(args)
	if err := t.check("rpc: call", fn, kwargs); err != nil {
		return nil, err
	}
	if t.isScript() {
		payload, err := e.ScriptCall(rpcwire.ScriptUDF{Schema: t.schema, Name: t.script, Stack: positional})
		return &rpcwire.Message{Type: rpcwire.ScriptCall, Payload: payload, Tensors: e.Tensors, Holders: e.Holders}, err
	}
	payload, err := e.PythonCall(rpcwire.UDF{Func: t.udf, Args: positional, Kwargs: kwargs}, false)
	return &rpcwire.Message{Type: rpcwire.PythonCall, Payload: payload, Tensors: e.Tensors, Holders: e.Holders}, err
}

// result reads the answer to a call.
func (a *Agent) result(fn string, p *rpclink.Peer, x rpclink.Reply) (any, error) {
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
		err = unexpectedAnswer(fn, p, x.Msg)
	}
	if err != nil {
		d.Abandon()
		return nil, err
	}
	if raised, ok := v.(*rpcwire.RemoteException); ok {
		p.Stats.Errors.Add(1)
		err := remoteError(p.Name, raised)
		if x.Frame != nil || notDecoded(raised.Msg) { // a Go worker ignores it for what it has decoded
			a.refs.Undecoded(p, x.Wires)
		}
		if err.Code == dist.DeadlineExceeded && !x.Due.IsZero() && !time.Now().Before(x.Due) {
			return nil, late(fn, p) // the callee was only faster to notice the caller's deadline
		}
		return nil, restoreReason(err)
	}
	return v, nil
}

func (a *Agent) call(ctx context.Context, to, fn string, args []any) (any, error) {
	if to == a.name {
		return a.callOwn(ctx, fn, args)
	}
	p, err := a.destination(ctx, to)
	if err != nil {
		return nil, err
	}
	return a.callPeer(ctx, a.prepare(p, fn, args))
}

// callAgain is call for functions of the agents themselves, which may arrive twice at a Go worker.
func (a *Agent) callAgain(ctx context.Context, to, fn string, args []any) error {
	p, err := a.net.Peer(to)
	if err != nil {
		return err
	}
	o := a.prepare(p, fn, args)
	o.repeat = func() bool { return true }
	_, err = a.callPeer(ctx, o)
	return err
}

func (a *Agent) callPeer(ctx context.Context, o *outgoing) (any, error) {
	started := a.begin(o)
	x, err := a.exchange(ctx, o)
	var v any
	if err == nil {
		v, err = a.result(o.fn, o.peer, x)
	}
	a.end(o, started, err)
	return v, err
}

// transact sends a request to any worker and returns the answer as it came.
func (a *Agent) transact(ctx context.Context, o *outgoing) (rpclink.Reply, error) {
	started := a.begin(o)
	var x rpclink.Reply
	var err error
	if o.peer != a.self {
		x, err = a.exchange(ctx, o)
	} else if err = a.calls.enter(ctx); err == nil {
		x, err = a.exchangeSelf(ctx, o)
		a.calls.leave()
	}
	a.end(o, started, err)
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

// begin tells that a request of this worker starts. The event's kind is rpc.call, rpc.remote or rpc.fetch; of a call the
// detail is its mode, "sync" or "async".
func (a *Agent) begin(o *outgoing) time.Time {
	a.counts.clientCalls.Add(1)
	if a.cfg.hook == nil {
		return time.Time{}
	}
	started := time.Now()
	a.cfg.hook.Emit(observe.Event{
		Time: started, Kind: observe.Kind("rpc." + o.op), Phase: observe.Begin, Rank: dist.Rank(a.id), Peer: o.peer.Name, Key: o.fn, Detail: o.mode,
	})
	return started
}

func (a *Agent) end(o *outgoing, started time.Time, err error) {
	a.counts.clientCalls.Add(-1)
	if a.cfg.hook != nil {
		a.cfg.hook.Emit(observe.Event{
			Kind: observe.Kind("rpc." + o.op), Phase: observe.End, Rank: dist.Rank(a.id), Peer: o.peer.Name, Key: o.fn, Detail: o.mode,
			Dur: time.Since(started), Err: err,
		})
	}
}

func (a *Agent) callOwn(ctx context.Context, fn string, args []any) (any, error) {
	if a.self == nil {
		return nil, rpclink.ErrClosed("call")
	}
	if err := a.calls.enter(ctx); err != nil {
		return nil, err
	}
	defer a.calls.leave()
	return a.callSelf(ctx, a.prepare(a.self, fn, args))
}

// destination finds a worker by name; a guest asks the store.
func (a *Agent) destination(ctx context.Context, to string) (*rpclink.Peer, error) {
	p, err := a.net.Peer(to)
	if err != nil && a.cfg.guest {
		return a.lookup(ctx, to)
	}
	return p, err
}

func cutScript(name string) (string, bool) { return strings.CutPrefix(name, scriptPrefix) }
