// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcref"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/observe"
)

// dispatch decides what a request is. It runs in a reading goroutine and does not block.
func (a *Agent) dispatch(r *request) {
	r.Peer.Stats.Served.Add(1)
	if x := a.extension; x != nil {
		switch {
		case x.wrappers[r.Kind]:
			a.unwrapped(r)
			return
		case x.kinds[r.Kind]:
			a.serveCall(r)
			return
		}
	}
	switch r.Kind {
	case rpcwire.RRefUserDelete, rpcwire.RRefForkRequest, rpcwire.RRefChildAccept:
		a.serveControl(r)
	case rpcwire.PythonRRefFetchCall, rpcwire.ScriptRRefFetchCall:
		a.serveFetch(r)
	case rpcwire.ForwardAutogradReq:
		x, inner, err := rpcwire.UnwrapAutograd(r.Payload)
		if err != nil {
			r.refuse(err)
			return
		}
		a.unwrap(r, x.Inner, inner)
	case rpcwire.RunWithProfilingReq:
		x, inner, err := rpcwire.UnwrapProfiling(r.Payload)
		if err != nil {
			r.refuse(err)
			return
		}
		r.wraps = append(r.wraps, func(m *rpcwire.Message) error {
			x.Inner = m.Type
			payload, err := x.WrapResponse(m.Payload)
			m.Type, m.Payload = rpcwire.RunWithProfilingResp, payload
			return err
		})
		a.unwrap(r, x.Inner, inner)
	case rpcwire.CleanupAutogradReq:
		if _, err := rpcwire.DecodeCleanup(r.Payload); err != nil {
			r.refuse(err)
			return
		}
		a.net.Background(func() { r.answer(&rpcwire.Message{Type: rpcwire.CleanupAutogradResp}, nil) })
	case rpcwire.BackwardAutogradReq, rpcwire.RRefBackwardReq:
		r.refuse(dist.Newf("rpc: backward", dist.NotSupported,
			"the Go worker %q takes no part in distributed autograd: join it with the engine of package autograd/dist, or detach what is sent to it or returned by it", a.name))
	case rpcwire.PythonCall, rpcwire.ScriptCall, rpcwire.PythonRemoteCall, rpcwire.ScriptRemoteCall:
		a.serveCall(r)
	default:
		r.refuse(dist.Newf("rpc: request", dist.Protocol, "%v is not a request that a worker serves", r.Kind))
	}
}

// unwrap dispatches the request inside a wrapper. A wrapper inside a wrapper of the same kind is refused by depth.
func (a *Agent) unwrap(r *request, inner rpcwire.Type, payload []byte) {
	if len(r.wraps) > 4 || inner == rpcwire.ForwardAutogradReq && r.Kind == rpcwire.ForwardAutogradReq {
		r.refuse(dist.New("rpc: request", dist.Protocol, "wrappers nested too deep"))
		return
	}
	r.Kind, r.Payload = inner, payload
	a.dispatch(r)
}

// job is a decoded call.
type job struct {
	req     Request
	handler *handler
	script  *rpcwire.ScriptUDF
	remote  *rpcwire.RRefPair // of a call whose result stays here
	err     error             // why it cannot run, although it was understood as a call
}

// serveCall takes a place for the handler and runs it in a goroutine of its own.
func (a *Agent) serveCall(r *request) {
	a.counts.serverCalls.Add(1)
	if !r.creates() || !r.cohort() { // an object outlives the link that its creating call came on
		r.track(r.ctx.Cancel) // here, since the caller's cancellation may be the next frame
	}
	now, ok := a.limiter.Enter(r)
	switch {
	case !ok:
		a.counts.serverCalls.Add(-1)
		a.drop(r)
		r.refuse(dist.Newf("rpc: request", dist.Exhausted, "more than %d requests wait for a place", a.cfg.queue))
	case now && r.Conn != nil && r.Conn.Inline != nil && (r.Inline || r.Conn.Inline.Brief()):
		in := r.Conn.Inline
		r.place.In(in.Reader)
		in.Do(func() { a.runCall(r) })
	case now:
		a.spawn(r)
	}
}

// owner is the agent in the contexts of its handlers.
type owner struct{ a *Agent }

var _ rpcplace.Owner = owner{}

func (o owner) Overdue() {
	o.a.cfg.logger.Warn("a handler does not return although its caller is gone: its slot is given to others", slog.String("worker", o.a.name))
}

// AgentFrom returns the agent that runs the handler whose context ctx is or comes from, or nil. It corresponds to the
// process-wide agent that a PyTorch function finds.
func AgentFrom(ctx context.Context) *Agent {
	o, _ := ctx.Value(rpcplace.OwnerKey{}).(owner)
	return o.a
}

// spawn gives a request to a goroutine that has just finished another one, or to a new one: a goroutine that has run a
// handler before has the stack for it. After Close the request is dropped with the connection.
func (a *Agent) spawn(r *request) {
	select {
	case a.idle <- r:
		return
	default:
	}
	if !a.net.Own(func() { a.serveFrom(r) }) {
		a.limiter.Leave(r.Caller())
	}
}

// idleHandlers is how many goroutines wait for the next request, idleTime how long.
const (
	idleHandlers = 64
	idleTime     = 5 * time.Second
)

// serveFrom runs requests in this goroutine, the first one first.
func (a *Agent) serveFrom(r *request) {
	a.runCall(r)
	if a.idlers.Add(1) > idleHandlers {
		a.idlers.Add(-1)
		return
	}
	defer a.idlers.Add(-1)
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	for {
		select {
		case r := <-a.idle:
			a.runCall(r)
		case <-a.net.Context.Done():
			return
		case <-timer.C:
			return
		}
	}
}

// drop releases the references of a request that is not decoded, or not to its end.
func (a *Agent) drop(r *request) {
	if r.Frame != nil {
		a.refs.Discard(r.Conn, r.Frame)
	}
}

// runCall decodes, waits for references to be confirmed, runs the function and answers.
//
//nolint:contextcheck,nolintlint // a handler has a context of its own
func (a *Agent) runCall(r *request) {
	started := time.Now()
	pl := &r.place
	pl.Take(a.limiter, r.Caller())
	creates := r.creates()
	if creates {
		r.Deadline = time.Time{} // it is the creation's, not the function's
	}
	// The handler's context ends with the caller's deadline, when the caller gives up, when the connection is lost and
	// with the agent.
	ctx := &r.ctx
	base := a.net.Context
	if r.values != nil {
		base = r.values(a.net.Context)
	}
	if r.Trace != "" {
		base = observe.WithTrace(base, r.Trace)
	}
	ctx.Begin(base, owner{a}, r.Deadline, pl)
	cancel := ctx.Cancel
	if a.extension != nil && a.extension.kinds[r.Kind] {
		a.serveKind(ctx, r, func() {
			a.counts.serverCalls.Add(-1)
			pl.End()
			cancel(rpcplace.ErrDone)
		})
		return
	}
	d := a.refs.Decoding(r.Peer, r.Frame, r.Tensors)
	r.decoder = d
	apart := creates && r.Frame != nil && len(r.Frame.Forks) > 0
	if apart { // a copy on another link claims the same references
		a.refs.Creating(r.Peer).Lock()
	}
	j, err := a.decodeCall(r, d)
	var obj *rpcref.Object
	if err == nil && j.remote != nil {
		obj, err = a.creationArrived(r, j, cancel)
	}
	if apart {
		a.refs.Creating(r.Peer).Unlock()
	}
	trace, parent := "", ""
	if a.cfg.hook != nil {
		trace, parent = observe.SplitTrace(r.Trace)
		a.cfg.hook.Emit(observe.Event{
			Time: started, Kind: "rpc.serve", Phase: observe.Begin, Trace: trace, Parent: parent, Rank: dist.Rank(a.id), Peer: r.Peer.Name, Key: shown(j.req.Func, j.req.Args),
		})
	}
	end := func() {
		a.counts.serverCalls.Add(-1)
		pl.End()
		if a.cfg.hook != nil {
			a.cfg.hook.Emit(observe.Event{
				Kind: "rpc.serve", Phase: observe.End, Rank: dist.Rank(a.id), Peer: r.Peer.Name, Key: shown(j.req.Func, j.req.Args), Dur: time.Since(started), Err: err,
				Trace: trace, Parent: parent,
			})
		}
	}
	if err != nil {
		failure := err
		if errors.Is(err, rpcref.ErrCalled) {
			err = nil
		}
		d.Release()
		a.drop(r)
		end()
		cancel(rpcplace.ErrDone)
		if err == nil {
			a.answerCreated(r, j)
			return
		}
		a.answerError(r, failure)
		return
	}
	if obj != nil {
		a.runRemote(ctx, r, j, obj, cancel, started, end)
		return
	}
	if err = j.err; err == nil {
		err = ctx.Waited()
	}
	if err == nil {
		if err = d.Confirmed(ctx); err == nil {
			err = a.find(j)
		}
	}
	if err != nil {
		d.Release()
		end()
		a.answerValue(r, j.form(), nil, err)
		cancel(rpcplace.ErrDone)
		return
	}
	var once atomic.Bool
	done := func(v any, herr error) {
		if !once.CompareAndSwap(false, true) {
			return
		}
		err = herr
		r.took(started)
		r.borrowed = herr == nil && j.handler != nil && j.handler.borrow
		a.answerValue(r, j.form(), v, herr) // the references among the arguments are the handler's to close
		end()
		cancel(rpcplace.ErrDone)
	}
	if !a.invoke(ctx, j, done) {
		d.Release()
	}
	if !once.Load() { // an async handler gives its place to others
		pl.Pause()
	}
}

// invoke runs the function of a job and turns a panic into an error. The stack stays here, in the log: a caller may be
// anybody. It reports false when the function was not run.
func (a *Agent) invoke(ctx context.Context, j *job, done func(any, error)) (ran bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		ran = true
		a.recovered(j.req.Func, recover(), done)
	}()
	if len(a.cfg.serving) > 0 {
		next, end, err := intercept(ctx, a.cfg.serving, callInfo(j.req.From.Name, j.req.Func, j.req.Args, j.remote != nil))
		if err != nil {
			done(nil, err)
			returned = true
			return false
		}
		told := done
		ctx, done = next, func(v any, err error) { end(err); told(v, err) }
	}
	if j.script != nil && j.script.Schema != "" {
		v, err := a.cfg.runKernel(j.script)
		done(v, err)
		ran = true
	} else {
		ran = j.handler.call(ctx, &j.req, done)
	}
	returned = true
	return ran
}

// recovered completes a request whose handler did not return: it panicked with v, or has ended its goroutine.
func (a *Agent) recovered(fn string, v any, done func(any, error)) {
	if v == nil { // runtime.Goexit: this goroutine ends, the request is answered all the same
		done(nil, dist.New("rpc: handler", dist.Internal, "the handler has ended its goroutine (runtime.Goexit) instead of returning"))
		return
	}
	a.cfg.logger.Error("handler panicked", slog.String("function", fn), slog.String("panic", fmt.Sprint(v)), slog.String("stack", string(debug.Stack())))
	done(nil, &panicError{value: v})
}

// find looks up the handler of a job.
func (a *Agent) find(j *job) error {
	if j.script != nil && j.script.Schema != "" {
		return nil
	}
	if j.handler = a.internal(j.req.Func); j.handler == nil {
		j.handler = a.cfg.registry.lookup(j.req.Func)
	}
	if j.handler == nil {
		return a.unknownFunction(j.req.Func)
	}
	return nil
}

func (a *Agent) unknownFunction(name string) error {
	return &RemoteError{
		Kind: "AttributeError", Code: dist.NotFound,
		Message: fmt.Sprintf("the Go worker %q has no handler %q", a.name, name),
		hint: ". Default RPC pickler does not serialize function code. " +
			"Ensure that function definitions match on both caller and callee modules.",
	}
}

// decodeCall reads the call inside a request. The references it brings are noted in d.
func (a *Agent) decodeCall(r *request, d *rpcref.Decoding) (*job, error) {
	dec := &d.Decoder
	j := &r.job
	j.req.From = infoOf(r.Peer)
	var u rpcwire.UDF
	var s rpcwire.ScriptUDF
	var err error
	switch r.Kind { //nolint:exhaustive // the others are not calls
	case rpcwire.PythonCall:
		u, _, err = dec.PythonCall(r.Payload)
	case rpcwire.ScriptCall:
		s, err = dec.ScriptCall(r.Payload)
		j.script = &s
	case rpcwire.PythonRemoteCall:
		var x rpcwire.RemoteUDF
		x, err = dec.PythonRemoteCall(r.Payload)
		u = x.UDF
		if err == nil || x.RRefPair != (rpcwire.RRefPair{}) {
			j.remote = &x.RRefPair
		}
	case rpcwire.ScriptRemoteCall:
		var x rpcwire.RemoteScriptUDF
		x, err = dec.ScriptRemoteCall(r.Payload)
		s = x.ScriptUDF
		j.script = &s
		if err == nil || x.RRefPair != (rpcwire.RRefPair{}) {
			j.remote = &x.RRefPair
		}
	}
	if err != nil {
		if j.remote != nil { // the failure is stored under its ids
			j.err = err
			return j, nil
		}
		return j, err
	}
	if j.script != nil {
		j.req.Func, j.req.Args = s.Name, s.Stack
		if s.Schema == "" {
			if name, ok := cutScript(s.Name); ok {
				j.req.Func = name
			}
		}
		return j, nil
	}
	j.req.Func, j.req.Args, j.req.Kwargs = u.Func.String(), u.Args, u.Kwargs
	return j, nil
}

// answerError answers a request that could not be understood.
func (a *Agent) answerError(r *request, err error) {
	if r.Kind == rpcwire.PythonCall {
		a.answerValue(r, callForm, nil, err)
		return
	}
	r.answer(r.failure(err), nil)
}
