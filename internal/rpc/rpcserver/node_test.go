// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/rpc/py"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// function is one that calls are for. done may be called later.
type function func(ctx context.Context, c *Call, done func(any, error))

// program has the functions of a test.
type program struct {
	mu        sync.Mutex
	functions map[string]function
	overdue   atomic.Int64
}

func (p *program) handle(name string, fn function) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.functions[name] = fn
}

func (p *program) Find(c *Call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn := p.functions[c.Func]
	if fn == nil {
		return cohort.Newf("rpc: call", cohort.NotFound, "no function %q", c.Func)
	}
	c.Function = fn
	return nil
}

func (p *program) Intercept(ctx context.Context, _ *Call) (context.Context, func(error), error) {
	return ctx, nil, nil
}

func (p *program) Run(ctx context.Context, c *Call, done func(any, error)) bool {
	c.Function.(function)(ctx, c, done) //nolint:errcheck,forcetypeassert // from Find
	return true
}
func (p *program) Shown(fn string, _ []any) string { return fn }

func (p *program) Exception(err error, _ bool) *rpcwire.RemoteException {
	return &rpcwire.RemoteException{
		Msg:   fmt.Sprintf("%d %s", cohort.CodeOf(err), err),
		Class: py.Global{Module: "builtins", Name: "RuntimeError"},
	}
}
func (p *program) Raised(err error) error { return err }
func (p *program) Overdue()               { p.overdue.Add(1) }

// node is a worker that calls, and serves if it has a server.
type node struct {
	net    *rpcsession.Links
	refs   *rpcref.Refs
	caller *rpcclient.Caller
	server *Server
	prog   *program
	hears  func(rpcsession.Incoming) // is told what others ask for
	spoils error                     // why nothing of that can be read
}

var _ rpcsession.Handler = (*node)(nil)

func (n *node) NewPeer() any { return rpcref.NewPeer() }
func (n *node) Request(in rpcsession.Incoming) {
	if n.hears != nil {
		n.hears(in)
	}
	if n.spoils != nil {
		in.Err = n.spoils
	}
	n.server.Arrived(in)
}
func (n *node) Connected(c *rpcsession.Conn)                          { n.refs.Connected(c) }
func (n *node) Control(c *rpcsession.Conn, payload []byte)            { n.refs.Frame(c, payload) }
func (n *node) Discard(c *rpcsession.Conn, f *cohortwire.Frame)       { n.refs.Discard(c, f) }
func (n *node) DiscardAnswer(p *rpcsession.Peer, m *rpcwire.Message)  { n.refs.DiscardAnswer(p, m) }
func (n *node) Undelivered(p *rpcsession.Peer, wires []rrefcore.Wire) { n.refs.Undelivered(p, wires) }
func (n *node) HoldsReferences(p *rpcsession.Peer) bool               { return n.refs.Tied(p) }
func (n *node) Died(p *rpcsession.Peer)                               { n.refs.Died(p) }

const testEpoch = 7

// start makes a worker whose server has that many places, and lets that many requests wait.
func start(tb testing.TB, name string, id int16, places, queue int) *node {
	tb.Helper()
	return startAs(tb, name, id, places, queue, &cohortwire.Config{
		Identity: cohortwire.Identity{Name: name, ID: id, Incarnation: testEpoch}, Secret: []byte(name),
		Published: func(id cohortwire.Identity) ([]byte, error) { return []byte(id.Name), nil },
	})
}

// startAs is start for a worker that speaks as PyTorch does, without a hello.
func startAs(tb testing.TB, name string, id int16, places, queue int, hello *cohortwire.Config) *node {
	tb.Helper()
	n := &node{prog: &program{functions: map[string]function{}}}
	quiet := slog.New(slog.DiscardHandler)
	n.net = rpcsession.New(rpcsession.Config{
		Name: name, Logger: quiet, Handler: n,
		Published: func(context.Context, string) (string, rpcworld.Entry, error) {
			return "", rpcworld.Entry{}, cohort.New("test", cohort.NotFound, "no store")
		},
	})
	self := n.net.NewPeer(name, rrefcore.Worker(id))
	limit := func() time.Duration { return 20 * time.Second }
	n.refs = rpcref.New(rpcref.Config{
		Name: name, ID: rrefcore.Worker(id), Epoch: testEpoch, Logger: quiet, Net: n.net, Self: self, Limit: limit,
		Wrap: func(h *rpcref.Hold) any { return h }, Unwrap: func(any) *rpcref.Hold { return nil }, Opaque: func(any) bool { return true },
		Failure: func(op string, _ rrefcore.ID, owner string, code rrefcore.Code, cause error) error {
			return cohort.Newf(op, cohort.Unavailable, "%v at %s: %v", code, owner, cause)
		},
	})
	n.caller = rpcclient.New(rpcclient.Config{
		Rank: cohort.Rank(id), Net: n.net, Refs: n.refs, Self: self, Timeout: limit,
		Exception: func(op, _, _ string, payload []byte) error {
			_, text := rpcwire.DecodeException(payload)
			return cohort.New(op, cohort.Remote, text)
		},
	})
	n.server = New(Config{
		Name: name, ID: int(id), Program: n.prog, Owner: n.prog, Net: n.net, Self: self, Refs: n.refs, Caller: n.caller,
		Concurrency: places, Queue: queue, Logger: quiet,
	})
	if err := n.net.Listen(tb.Context(), "127.0.0.1:0", hello); err != nil {
		tb.Fatal(err)
	}
	n.net.Go(n.refs.Run)
	tb.Cleanup(n.close)
	return n
}

// close ends the worker. It may be called more than once.
func (n *node) close() {
	if n.net.BeginClose() {
		n.net.EndSessions(n.refs.Close, func() {})
	}
	<-n.net.Done
}

// peers makes workers known to each other.
func peers(nodes ...*node) {
	for i, n := range nodes {
		for j, other := range nodes {
			if i != j {
				n.net.AddPeer(other.server.cfg.Name, rrefcore.Worker(j), other.net.Addr().String(), rpcworld.Entry{Epoch: testEpoch})
			}
		}
	}
}

// send sends a request and returns the answer.
func (n *node) send(ctx context.Context, to string, kind rpcwire.Type, payload []byte) (rpcsession.Reply, error) {
	peer, err := n.net.Peer(to)
	if err != nil {
		return rpcsession.Reply{}, err
	}
	o := &rpcclient.Outgoing{By: n.caller, Op: "call", Func: "test", Peer: peer}
	o.Build = func(bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		return &rpcwire.Message{Type: kind, Payload: payload}, nil, 0, nil
	}
	started := n.caller.Begin(ctx, o)
	x, err := n.caller.Exchange(ctx, o)
	n.caller.End(o, started, err)
	return x, err
}

// call calls a function. An error of the function is one that says what the worker was told.
func (n *node) call(ctx context.Context, to, fn string) (any, error) {
	payload, err := (&rpcwire.Encoder{}).PythonCall(rpcwire.UDF{Func: py.Func(fn), Kwargs: &py.Dict{}}, false)
	if err != nil {
		return nil, err
	}
	x, err := n.send(ctx, to, rpcwire.PythonCall, payload)
	if err != nil {
		return nil, err
	}
	v, err := (&rpcwire.Decoder{Tensors: x.Msg.Tensors}).PythonRet(x.Msg.Payload)
	if raised, ok := v.(*rpcwire.RemoteException); ok {
		return nil, cohort.New("test: call", cohort.Remote, raised.Msg)
	}
	return v, err
}

// idle waits until a server has nothing to do.
func (n *node) idle(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		calls, running, waiting := n.server.Counts()
		if calls == 0 && running == 0 && waiting == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%d calls, %d handlers, %d waiting", calls, running, waiting)
		}
		time.Sleep(time.Millisecond)
	}
}
