// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// serveCall takes a slot for the handler and runs it in a goroutine of its own.
func (s *Server) serveCall(r *request) {
	s.calls.Add(1)
	if !r.creates() || !r.goPeer() { // an object outlives the link that its creating call came on
		if r.Conn != nil && r.goPeer() {
			r.awaited.Store(true)
			s.awaited.Add(1)
		}
		r.track(r.canceledByCaller) // here, since the caller's cancellation may be the next frame
	}
	now, ok := s.limiter.Enter(r)
	switch {
	case !ok:
		s.calls.Add(-1)
		s.reject(r, cohort.Newf("rpc: request", cohort.Exhausted, "more than %d requests wait for a slot", s.cfg.Queue))
	case now && r.inReader():
		in := r.Conn.Inline
		r.slot.In(in.Reader)
		in.Do(func() { s.runCall(r) })
	case now:
		s.spawn(r)
	}
}

// inReader reports whether the goroutine that has read a request may run its handler: nothing else waits to be read and no handler takes
// long, or handlers are brief on average. On a pipe of PyTorch the average is not enough: none may take long.
func (r *request) inReader() bool {
	if r.Conn == nil || r.Conn.Inline == nil {
		return false
	}
	in := r.Conn.Inline
	return r.Inline || in.Brief() && (r.goPeer() || in.Short())
}

// spawn gives a request to a goroutine that has just finished another one, or to a new one: a goroutine that has run a
// handler before has the stack for it. After Close the request is dropped with the connection.
func (s *Server) spawn(r *request) {
	failpoint.At("rpc.serve.spawn")
	select {
	case s.idle <- r:
		return
	default:
	}
	if !s.cfg.Net.Go(func() { s.serveFrom(r) }) {
		s.limiter.Leave(r.Caller())
	}
}

// idleHandlers is how many goroutines wait for the next request, idleTime how long.
const (
	idleHandlers = 64
	idleTime     = 5 * time.Second
)

// serveFrom runs requests in this goroutine, the first one first.
func (s *Server) serveFrom(r *request) {
	s.runCall(r)
	if s.idlers.Add(1) > idleHandlers {
		s.idlers.Add(-1)
		return
	}
	defer s.idlers.Add(-1)
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	for {
		failpoint.At("rpc.serve.idle")
		select {
		case r := <-s.idle:
			s.runCall(r)
		case <-s.cfg.Net.Context.Done():
			return
		case <-timer.C:
			return
		}
	}
}

// reject refuses a request that does not get as far as a handler. It is called in the goroutine that reads.
func (s *Server) reject(r *request, err error) {
	if !s.createFailed(r, err) {
		s.drop(r)
		r.refuse(err)
	}
}

// drop releases the references of a request that is not decoded, or not to its end.
func (s *Server) drop(r *request) {
	switch {
	case r.Frame != nil:
		s.cfg.Refs.Discard(r.Conn, r.Frame)
	case r.execution != nil && !r.goPeer(): // a PyTorch worker keeps what it has sent until it is acknowledged; a fetch has no references
		if r.decoder.Arrive == nil { // nothing of it was read
			r.decoder.Begin(s.cfg.Refs, r.Peer, nil, nil)
		}
		r.decoder.Unread(r.Kind, r.Payload)
	}
}

// runCall decodes, waits for references to be confirmed, runs the function and answers.
//
//nolint:contextcheck,nolintlint // a handler has a context of its own
func (s *Server) runCall(r *request) {
	r.began = time.Now()
	r.slot.Take(s.limiter, r.Caller())
	s.beginContext(r)
	if s.cfg.Extension != nil && s.cfg.Extension.kinds[r.Kind] {
		s.serveKind(&r.ctx, r, func() {
			s.calls.Add(-1)
			r.slot.End()
			r.ctx.Cancel(rpcslots.ErrDone)
		})
		return
	}
	obj, err := s.decode(r)
	s.emit(r, observe.Begin, nil)
	switch {
	case err != nil:
		s.unknownMessage(r, err)
	case obj != nil:
		s.runRemote(r, obj)
	default:
		s.runFunction(r)
	}
}

// beginContext makes the handler's context. It ends with the caller's deadline, when the caller gives up, when the connection is lost
// and with the agent.
func (s *Server) beginContext(r *request) {
	if r.creates() {
		r.Deadline = time.Time{} // it is the creation's, not the function's
	}
	base := s.cfg.Net.Context
	if r.values != nil {
		base = r.values(base)
	}
	if r.Trace != "" {
		base = observe.WithTrace(base, r.Trace)
	}
	r.ctx.Begin(base, s.cfg.Owner, r.Deadline, &r.slot)
}

// decode decodes a call. If it creates an object, it returns that, without its value.
func (s *Server) decode(r *request) (obj *rpcref.Object, err error) {
	s.cfg.Refs.AwaitEarly(&r.ctx, r.Frame)
	r.decoder.Begin(s.cfg.Refs, r.Peer, r.Frame, r.Tensors)
	if r.creates() && r.Frame != nil && len(r.Frame.Forks) > 0 { // a copy on another link claims the same references
		failpoint.At("rpc.serve.creating")
		creating := s.cfg.Refs.Creating(r.Peer)
		creating.Lock()
		defer creating.Unlock()
	}
	j, err := s.decodeCall(r, &r.decoder)
	if err == nil && j.Remote {
		obj, err = s.creationArrived(r, j, r.ctx.Cancel)
	}
	return obj, err
}

// unknownMessage answers a call that could not be decoded, or whose object cannot be made, or is here already.
func (s *Server) unknownMessage(r *request, err error) {
	here := errors.Is(err, rpcref.ErrCalled)
	// PyTorch never settles a reference whose creation is answered with an error, and its shutdown would wait for it. No object exists
	// that could keep the error: a later fetch is answered that the object is gone.
	settles := r.job.Remote && !r.goPeer()
	r.decoder.Release()
	s.drop(r)
	if here {
		err = nil
	}
	s.ended(r, err)
	r.ctx.Cancel(rpcslots.ErrDone)
	if here || settles {
		s.answerCreated(r, &r.job)
		return
	}
	s.answerError(r, err)
}

// runFunction runs the function of a call and answers with its result.
func (s *Server) runFunction(r *request) {
	j := &r.job
	err := r.ctx.Waited()
	if err == nil {
		err = s.find(r)
	}
	if err != nil {
		r.decoder.Release()
		s.ended(r, err)
		s.answerValue(r, j.form(), nil, err)
		r.ctx.Cancel(rpcslots.ErrDone)
		return
	}
	done := func(v any, err error) {
		if !r.ended.CompareAndSwap(false, true) {
			return
		}
		r.recordDuration(r.began)
		r.borrowed = err == nil && j.Borrows
		s.answerValue(r, j.form(), v, err) // the references among the arguments are the handler's to close
		s.ended(r, err)
		r.ctx.Cancel(rpcslots.ErrDone)
	}
	if !s.invoke(&r.ctx, j, done) {
		r.decoder.Release()
	}
	if !r.ended.Load() { // an async handler gives its slot to others
		r.slot.Pause()
	}
}

// find waits until the references among the arguments are confirmed, and looks up the function.
func (s *Server) find(r *request) error {
	if err := r.decoder.Confirmed(&r.ctx); err != nil {
		return err
	}
	return s.cfg.Program.Find(&r.job.Call)
}

// ended gives the slot of a call back.
func (s *Server) ended(r *request, err error) {
	s.calls.Add(-1)
	r.slot.End()
	s.emit(r, observe.End, err)
}

// emit reports to the observers of this worker that a call begins or has ended.
func (s *Server) emit(r *request, phase observe.Phase, err error) {
	if s.cfg.Hook == nil {
		return
	}
	trace, parent := observe.SplitTrace(r.Trace)
	e := observe.Event{
		Kind: "rpc.serve", Phase: phase, Trace: trace, Parent: parent, Rank: cohort.Rank(s.cfg.ID), Peer: r.Peer.Name,
		Key: s.cfg.Program.Shown(r.job.Func, r.job.Args), Err: err,
	}
	if phase == observe.Begin {
		e.Time = r.began
	} else {
		e.Dur = time.Since(r.began)
	}
	s.cfg.Hook.Emit(e)
}

// invoke runs the function of a job and turns a panic into an error. The stack stays here, in the log: a caller may be
// any process. It reports false when the function was not run.
func (s *Server) invoke(ctx context.Context, j *job, done func(any, error)) (ran bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		ran = true
		s.recovered(j.Func, recover(), done)
	}()
	next, end, err := s.cfg.Program.Intercept(ctx, &j.Call)
	if err != nil {
		done(nil, err)
		returned = true
		return false
	}
	if end != nil {
		finish := done
		done = func(v any, err error) { end(err); finish(v, err) }
	}
	ran = s.cfg.Program.Run(next, &j.Call, done)
	returned = true
	return ran
}

// recovered completes a request whose handler did not return: it panicked with v, or has ended its goroutine.
func (s *Server) recovered(fn string, v any, done func(any, error)) {
	if v == nil { // runtime.Goexit: this goroutine ends, the request is still answered
		done(nil, cohort.New("rpc: handler", cohort.Internal, "the handler has ended its goroutine (runtime.Goexit) instead of returning"))
		return
	}
	s.cfg.Logger.Error("handler panicked", slog.String("function", fn), slog.String("panic", fmt.Sprint(v)),
		slog.String("stack", string(debug.Stack())))
	done(nil, &panicError{value: v})
}

// panicError is a panic of a handler.
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// job is a decoded call.
type job struct {
	Call
	script bool             // it came as TorchScript and is answered so
	pair   rpcwire.RRefPair // of a call whose result stays here
	err    error            // why it cannot run, although it was understood as a call
}

// scriptPrefix begins the qualified names of TorchScript functions.
const scriptPrefix = "__torch__."

// decodeCall reads the call inside a request. The references it brings are noted in d.
func (s *Server) decodeCall(r *request, d *rpcref.Decoding) (*job, error) {
	dec := &d.Decoder
	j := &r.job
	j.From, j.Conn = r.Peer, r.Conn
	var u rpcwire.UDF
	var x rpcwire.ScriptUDF
	var err error
	switch r.Kind { //nolint:exhaustive // the others are not calls
	case rpcwire.PythonCall:
		u, _, err = dec.PythonCall(r.Payload)
	case rpcwire.ScriptCall:
		x, err = dec.ScriptCall(r.Payload)
		j.script = true
	case rpcwire.PythonRemoteCall:
		var creating rpcwire.RemoteUDF
		creating, err = dec.PythonRemoteCall(r.Payload)
		u = creating.UDF
		j.creates(creating.RRefPair, err)
	case rpcwire.ScriptRemoteCall:
		var creating rpcwire.RemoteScriptUDF
		creating, err = dec.ScriptRemoteCall(r.Payload)
		x = creating.ScriptUDF
		j.script = true
		j.creates(creating.RRefPair, err)
	}
	if err != nil {
		if j.Remote { // the failure is stored under its ids
			j.err = err
			return j, nil
		}
		return j, err
	}
	if j.script {
		j.Func, j.Args, j.Schema = x.Name, x.Stack, x.Schema
		if x.Schema == "" {
			j.Func = strings.TrimPrefix(x.Name, scriptPrefix)
		}
		return j, nil
	}
	j.Func, j.Args, j.Kwargs = u.Func.String(), u.Args, u.Kwargs
	return j, nil
}

// creates notes the ids of the object that a call makes, if they could be read.
func (j *job) creates(pair rpcwire.RRefPair, err error) {
	if err == nil || pair != (rpcwire.RRefPair{}) {
		j.pair, j.Remote = pair, true
	}
}
