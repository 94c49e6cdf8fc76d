// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcref"
	"github.com/cohort-dist/cohort/observe"
)

// serveCall takes a place for the handler and runs it in a goroutine of its own.
func (s *Server) serveCall(r *request) {
	s.calls.Add(1)
	if !r.creates() || !r.cohort() { // an object outlives the link that its creating call came on
		if r.Conn != nil && r.cohort() {
			r.awaited.Store(true)
			s.awaited.Add(1)
		}
		r.track(r.givenUp) // here, since the caller's cancellation may be the next frame
	}
	now, ok := s.limiter.Enter(r)
	switch {
	case !ok:
		s.calls.Add(-1)
		s.drop(r)
		r.refuse(dist.Newf("rpc: request", dist.Exhausted, "more than %d requests wait for a place", s.cfg.Queue))
	case now && r.Conn != nil && r.Conn.Inline != nil && (r.Inline || r.Conn.Inline.Brief() && (r.cohort() || r.Conn.Inline.Short())):
		in := r.Conn.Inline
		r.place.In(in.Reader)
		in.Do(func() { s.runCall(r) })
	case now:
		s.spawn(r)
	}
}

// spawn gives a request to a goroutine that has just finished another one, or to a new one: a goroutine that has run a
// handler before has the stack for it. After Close the request is dropped with the connection.
func (s *Server) spawn(r *request) {
	moment.At("rpc.serve.spawn")
	select {
	case s.idle <- r:
		return
	default:
	}
	if !s.cfg.Net.Own(func() { s.serveFrom(r) }) {
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
		moment.At("rpc.serve.idle")
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

// drop releases the references of a request that is not decoded, or not to its end.
func (s *Server) drop(r *request) {
	if r.Frame != nil {
		s.cfg.Refs.Discard(r.Conn, r.Frame)
	}
}

// runCall decodes, waits for references to be confirmed, runs the function and answers.
//
//nolint:contextcheck,nolintlint // a handler has a context of its own
func (s *Server) runCall(r *request) {
	started := time.Now()
	r.began = started
	pl := &r.place
	pl.Take(s.limiter, r.Caller())
	creates := r.creates()
	if creates {
		r.Deadline = time.Time{} // it is the creation's, not the function's
	}
	// The handler's context ends with the caller's deadline, when the caller gives up, when the connection is lost and
	// with the agent.
	ctx := &r.ctx
	base := s.cfg.Net.Context
	if r.values != nil {
		base = r.values(s.cfg.Net.Context)
	}
	if r.Trace != "" {
		base = observe.WithTrace(base, r.Trace)
	}
	ctx.Begin(base, s.cfg.Owner, r.Deadline, pl)
	cancel := ctx.Cancel
	if s.cfg.Extension != nil && s.cfg.Extension.kinds[r.Kind] {
		s.serveKind(ctx, r, func() {
			s.calls.Add(-1)
			pl.End()
			cancel(rpcplace.ErrDone)
		})
		return
	}
	s.cfg.Refs.AwaitEarly(ctx, r.Frame)
	d := s.cfg.Refs.Decoding(r.Peer, r.Frame, r.Tensors)
	r.decoder = d
	apart := creates && r.Frame != nil && len(r.Frame.Forks) > 0
	if apart { // a copy on another link claims the same references
		moment.At("rpc.serve.creating")
		s.cfg.Refs.Creating(r.Peer).Lock()
	}
	j, err := s.decodeCall(r, d)
	var obj *rpcref.Object
	if err == nil && j.Remote {
		obj, err = s.creationArrived(r, j, cancel)
	}
	if apart {
		s.cfg.Refs.Creating(r.Peer).Unlock()
	}
	trace, parent := "", ""
	if s.cfg.Hook != nil {
		trace, parent = observe.SplitTrace(r.Trace)
		s.cfg.Hook.Emit(observe.Event{
			Time: started, Kind: "rpc.serve", Phase: observe.Begin, Trace: trace, Parent: parent, Rank: dist.Rank(s.cfg.ID), Peer: r.Peer.Name, Key: s.cfg.Program.Shown(j.Func, j.Args),
		})
	}
	end := func() {
		s.calls.Add(-1)
		pl.End()
		if s.cfg.Hook != nil {
			s.cfg.Hook.Emit(observe.Event{
				Kind: "rpc.serve", Phase: observe.End, Rank: dist.Rank(s.cfg.ID), Peer: r.Peer.Name, Key: s.cfg.Program.Shown(j.Func, j.Args), Dur: time.Since(started), Err: err,
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
		s.drop(r)
		end()
		cancel(rpcplace.ErrDone)
		if err == nil {
			s.answerCreated(r, j)
			return
		}
		s.answerError(r, failure)
		return
	}
	if obj != nil {
		s.runRemote(ctx, r, j, obj, cancel, started, end)
		return
	}
	if err = j.err; err == nil {
		err = ctx.Waited()
	}
	if err == nil {
		if err = d.Confirmed(ctx); err == nil {
			err = s.cfg.Program.Find(&j.Call)
		}
	}
	if err != nil {
		d.Release()
		end()
		s.answerValue(r, j.form(), nil, err)
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
		r.borrowed = herr == nil && j.Borrows
		s.answerValue(r, j.form(), v, herr) // the references among the arguments are the handler's to close
		end()
		cancel(rpcplace.ErrDone)
	}
	if !s.invoke(ctx, j, done) {
		d.Release()
	}
	if !once.Load() { // an async handler gives its place to others
		pl.Pause()
	}
}

// invoke runs the function of a job and turns a panic into an error. The stack stays here, in the log: a caller may be
// anybody. It reports false when the function was not run.
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
		told := done
		done = func(v any, err error) { end(err); told(v, err) }
	}
	ran = s.cfg.Program.Run(next, &j.Call, done)
	returned = true
	return ran
}

// recovered completes a request whose handler did not return: it panicked with v, or has ended its goroutine.
func (s *Server) recovered(fn string, v any, done func(any, error)) {
	if v == nil { // runtime.Goexit: this goroutine ends, the request is answered all the same
		done(nil, dist.New("rpc: handler", dist.Internal, "the handler has ended its goroutine (runtime.Goexit) instead of returning"))
		return
	}
	s.cfg.Logger.Error("handler panicked", slog.String("function", fn), slog.String("panic", fmt.Sprint(v)), slog.String("stack", string(debug.Stack())))
	done(nil, &panicError{value: v})
}

// panicError is a panic of a handler.
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }
