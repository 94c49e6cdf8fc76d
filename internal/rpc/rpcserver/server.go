// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Call is a call of a function, as it was decoded.
type Call struct {
	From   *rpcsession.Peer
	Conn   *rpcsession.Conn // on which it came; nil for a call of this worker to itself
	Func   string
	Args   []any
	Kwargs *py.Dict
	// Schema is that of the builtin operator that is called, empty for a function.
	Schema string
	// Remote says that the result stays here.
	Remote bool
	// Function is what [Program.Find] has found. Borrows says that it keeps nothing of its arguments.
	Function any
	Borrows  bool
}

// Program has the functions that calls are for.
type Program interface {
	// Find looks up the function of a call.
	Find(c *Call) error
	// Intercept is asked before a function is run. It may give it another context, and a function that gets the outcome.
	Intercept(ctx context.Context, c *Call) (next context.Context, end func(error), err error)
	// Run runs it. done is called exactly once, perhaps later. It reports false when the arguments did not fit and the
	// function was not run. It may panic.
	Run(ctx context.Context, c *Call, done func(any, error)) (ran bool)
	// Shown is the name of a call in events.
	Shown(fn string, args []any) string
	// Exception is what a caller gets for an error of its call.
	Exception(err error, toGo bool) *rpcwire.RemoteException
	// Raised is the error of a creating call's function as it is kept with the object.
	Raised(err error) error
}

// Config is what a server needs to know of its worker.
type Config struct {
	Name    string
	ID      int
	Program Program
	Owner   rpcslots.Owner // in the contexts of handlers
	Net     *rpcsession.Links
	Self    *rpcsession.Peer
	Refs    *rpcref.Refs
	Caller  *rpcclient.Caller
	// Extension takes part in requests. Nil without one.
	Extension *Extension
	// Static says that the world ends together: running creations count as active.
	Static             bool
	Concurrency, Queue int // how many handlers run, how many requests wait
	Logger             *slog.Logger
	Hook               observe.Hook // may be nil
}

// Server answers the requests that arrive at a worker.
type Server struct {
	cfg     Config
	limiter *rpcslots.Limiter
	idle    chan *request // taken by goroutines that have no request
	idlers  atomic.Int64
	calls   atomic.Int64
	awaited atomic.Int64 // calls of other Go workers that wait for an answer
}

// New returns the server of a worker's requests.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, idle: make(chan *request)}
	//nolint:errcheck,forcetypeassert // only requests enter
	s.limiter = rpcslots.New(cfg.Concurrency, cfg.Queue, func(t rpcslots.Task) { s.spawn(t.(*request)) })
	return s
}

// Counts returns how many calls are served, how many handlers run, and how many requests wait for a slot.
func (s *Server) Counts() (calls, running, waiting int) {
	running, waiting = s.limiter.Counts()
	return int(s.calls.Load()), running, waiting
}

// Abandoned returns how many of the requests that wait for a slot have no caller any more. They are not run.
func (s *Server) Abandoned() int {
	n := 0
	for _, t := range s.limiter.Queued() {
		if r, ok := t.(*request); ok && r.ctx.Cancelled() {
			n++
		}
	}
	return n
}

// Awaited returns how many calls of other Go workers wait for an answer of this worker. A caller that has given up is not
// counted, however long its handler goes on. PyTorch callers are not counted at all: their protocol does not report when they give up.
func (s *Server) Awaited() int { return int(s.awaited.Load()) }

// Arrived takes a request of a peer. It is called by the goroutine that reads and does not block.
func (s *Server) Arrived(in rpcsession.Incoming) {
	r := s.newRequest(&in)
	if in.Err != nil {
		s.reject(r, in.Err)
		return
	}
	s.dispatch(r)
}

// dispatch decides what a request is. It runs in a reading goroutine and does not block.
func (s *Server) dispatch(r *request) {
	r.Peer.Stats.Served.Add(1)
	if x := s.cfg.Extension; x != nil {
		switch {
		case x.wrappers[r.Kind]:
			s.unwrapped(r)
			return
		case x.kinds[r.Kind]:
			s.serveCall(r)
			return
		}
	}
	switch r.Kind {
	case rpcwire.RRefUserDelete, rpcwire.RRefForkRequest, rpcwire.RRefChildAccept:
		s.serveControl(r)
	case rpcwire.PythonRRefFetchCall, rpcwire.ScriptRRefFetchCall:
		s.serveFetch(r)
	case rpcwire.ForwardAutogradReq:
		x, inner, err := rpcwire.UnwrapAutograd(r.Payload)
		if err != nil {
			r.refuse(err)
			return
		}
		s.unwrap(r, x.Inner, inner)
	case rpcwire.RunWithProfilingReq:
		s.serveProfiled(r)
	case rpcwire.CleanupAutogradReq:
		if _, err := rpcwire.DecodeCleanup(r.Payload); err != nil {
			r.refuse(err)
			return
		}
		s.cfg.Net.Background(func() { r.answer(&rpcwire.Message{Type: rpcwire.CleanupAutogradResp}, nil) })
	case rpcwire.BackwardAutogradReq, rpcwire.RRefBackwardReq:
		r.refuse(cohort.Newf("rpc: backward", cohort.NotSupported,
			"the Go worker %q takes no part in distributed autograd: join it with the engine of package autograd/distautograd, or "+
				"detach what is sent to it or returned by it", s.cfg.Name))
	case rpcwire.PythonCall, rpcwire.ScriptCall, rpcwire.PythonRemoteCall, rpcwire.ScriptRemoteCall:
		s.serveCall(r)
	default:
		r.refuse(cohort.Newf("rpc: request", cohort.Protocol, "%v is not a request that a worker serves", r.Kind))
	}
}

// unwrap dispatches the request inside a wrapper. A wrapper inside a wrapper of the same kind is refused by depth.
func (s *Server) unwrap(r *request, inner rpcwire.Type, payload []byte) {
	if len(r.wraps) > 4 || inner == rpcwire.ForwardAutogradReq && r.Kind == rpcwire.ForwardAutogradReq {
		s.drop(r)
		r.refuse(cohort.New("rpc: request", cohort.Protocol, "wrappers nested too deep"))
		return
	}
	r.Kind, r.Payload = inner, payload
	s.dispatch(r)
}
