// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a worker with nothing above its calls: serve gets the requests of others.
type node struct {
	net   *rpcsession.Links
	refs  *rpcref.Refs
	k     *Caller
	serve atomic.Pointer[func(in rpcsession.Incoming)]

	offered, answered, lost atomic.Int64 // what its extension was asked and told
}

var _ rpcsession.Handler = (*node)(nil)

func (n *node) NewPeer() any                                          { return rpcref.NewPeer() }
func (n *node) Request(in rpcsession.Incoming)                        { (*n.serve.Load())(in) }
func (n *node) Connected(c *rpcsession.Conn)                          { n.refs.Connected(c) }
func (n *node) Control(c *rpcsession.Conn, payload []byte)            { n.refs.Frame(c, payload) }
func (n *node) Discard(c *rpcsession.Conn, f *cohortwire.Frame)       { n.refs.Discard(c, f) }
func (n *node) DiscardAnswer(p *rpcsession.Peer, m *rpcwire.Message)  { n.refs.DiscardAnswer(p, m) }
func (n *node) Undelivered(p *rpcsession.Peer, wires []rrefcore.Wire) { n.refs.Undelivered(p, wires) }
func (n *node) HoldsReferences(p *rpcsession.Peer) bool               { return n.refs.Tied(p) }
func (n *node) Died(p *rpcsession.Peer)                               { n.refs.Died(p) }

// answerWith says what is done with requests from now on.
func (n *node) answerWith(serve func(in rpcsession.Incoming)) { n.serve.Store(&serve) }

const testEpoch = 7

// start makes a worker. A timeout of zero is none.
func start(tb testing.TB, name string, id int16, goPeer bool, timeout time.Duration) *node {
	tb.Helper()
	n := &node{}
	n.answerWith(func(rpcsession.Incoming) {})
	quiet := slog.New(slog.DiscardHandler)
	n.net = rpcsession.New(rpcsession.Config{
		Name: name, Logger: quiet, Handler: n,
		Published: func(context.Context, string) (string, rpcworld.Entry, error) {
			return "", rpcworld.Entry{}, cohort.New("test", cohort.NotFound, "no store")
		},
	})
	self := n.net.NewPeer(name, rrefcore.Worker(id))
	n.refs = rpcref.New(rpcref.Config{
		Name: name, ID: rrefcore.Worker(id), Epoch: testEpoch, Logger: quiet, Net: n.net, Self: self,
		Limit: func() time.Duration { return timeout },
		Wrap:  func(h *rpcref.Hold) any { return h }, Unwrap: func(any) *rpcref.Hold { return nil }, Opaque: func(any) bool { return true },
		Failure: func(op string, _ rrefcore.ID, owner string, code rrefcore.Code, cause error) error {
			return cohort.Newf(op, cohort.Unavailable, "%v at %s: %v", code, owner, cause)
		},
	})
	n.k = New(Config{
		Rank: cohort.Rank(id), Net: n.net, Refs: n.refs, Self: self, Timeout: func() time.Duration { return timeout },
		Exception: func(op, fn, worker string, payload []byte) error {
			_, text := rpcwire.DecodeException(payload)
			e := cohort.New(op, cohort.Remote, text)
			e.Key, e.Peer = fn, worker
			return e
		},
		Outgoing: func(_ context.Context, _ *rpcsession.Peer, _ bool, _ string, m *rpcwire.Message) (*rpcext.Exchange, error) {
			n.offered.Add(1)
			return &rpcext.Exchange{
				Message: m, Answered: func(*rpcwire.Message) error { n.answered.Add(1); return nil }, Lost: func() { n.lost.Add(1) },
			}, nil
		},
	})
	var hello *cohortwire.Config
	if goPeer {
		hello = &cohortwire.Config{
			Identity: cohortwire.Identity{Name: name, ID: id, Incarnation: testEpoch}, Secret: []byte(name),
			Published: func(id cohortwire.Identity) ([]byte, error) { return []byte(id.Name), nil },
		}
	}
	if err := n.net.Listen(tb.Context(), "127.0.0.1:0", hello); err != nil {
		tb.Fatal(err)
	}
	n.net.Go(n.refs.Run)
	tb.Cleanup(n.close)
	return n
}

// begin ends the worker, and does not wait until it has ended.
func (n *node) begin() {
	if n.net.BeginClose() {
		n.net.EndSessions(n.refs.Close, func() {})
	}
}

func (n *node) close() {
	n.begin()
	<-n.net.Done
}

// pair is a caller and a callee that know each other.
type pair struct {
	caller, callee *node
	peer           *rpcsession.Peer // the callee, as the caller knows it
}

func newPair(tb testing.TB, goPeer bool, timeout time.Duration) *pair {
	tb.Helper()
	p := &pair{caller: start(tb, "caller", 0, goPeer, timeout), callee: start(tb, "callee", 1, goPeer, timeout)}
	entry := rpcworld.Entry{}
	if goPeer {
		entry.Epoch = testEpoch
	}
	p.peer = p.caller.net.AddPeer("callee", 1, p.callee.net.Addr().String(), entry)
	p.callee.net.AddPeer("caller", 0, p.caller.net.Addr().String(), entry)
	return p
}

// request is a call whose payload says which one it is.
func (p *pair) request(op, text string) *Outgoing {
	o := &Outgoing{By: p.caller.k, Op: op, Func: text, Peer: p.peer}
	o.Build = func(bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		return &rpcwire.Message{Type: rpcwire.PythonCall, Payload: []byte(text)}, nil, 0, nil
	}
	return o
}

// answer sends an answer as a worker does.
func answer(in rpcsession.Incoming, m *rpcwire.Message) {
	in.Conn.Untrack(in.ID)
	m.ID = int64(in.ID)
	_, _ = in.Conn.Write(context.Background(), m, nil, 0, time.Time{})
}

func echo(in rpcsession.Incoming) {
	answer(in, &rpcwire.Message{Type: rpcwire.PythonRet, Payload: in.Payload})
}

// way is one of the ways to send a request and to learn its outcome.
type way struct {
	name string
	send func(p *pair, ctx context.Context, o *Outgoing, done func(rpcsession.Reply, error))
}

var ways = []way{
	{"exchange", func(p *pair, ctx context.Context, o *Outgoing, done func(rpcsession.Reply, error)) {
		go func() { done(p.caller.k.exchangeCounted(ctx, o)) }()
	}},
	{"async", func(p *pair, ctx context.Context, o *Outgoing, done func(rpcsession.Reply, error)) {
		p.onSession(ctx, o, done, func(c *rpcsession.Conn) {
			p.caller.k.Async(ctx, c, o, func(x rpcsession.Reply, err error) { done(x, err); p.caller.k.Active.Leave() })
		})
	}},
	{"lasting", func(p *pair, ctx context.Context, o *Outgoing, done func(rpcsession.Reply, error)) {
		p.onSession(ctx, o, done, func(c *rpcsession.Conn) { p.caller.k.AsyncRetried(ctx, c, o, done) })
	}},
}

// exchangeCounted is Exchange with its events, as callers use it.
func (k *Caller) exchangeCounted(ctx context.Context, o *Outgoing) (rpcsession.Reply, error) {
	started := k.Begin(ctx, o)
	x, err := k.Exchange(ctx, o)
	k.End(o, started, err)
	return x, err
}

// onSession counts a request as active and gives it a session, as the callers of Async do.
func (p *pair) onSession(ctx context.Context, o *Outgoing, done func(rpcsession.Reply, error), use func(*rpcsession.Conn)) {
	k := p.caller.k
	if err := k.Active.Enter(ctx); err != nil {
		done(rpcsession.Reply{}, err)
		return
	}
	giveUp := o.Early(ctx)
	if !p.caller.net.Go(func() {
		bounded, cancel := Until(ctx, k.Deadline(ctx))
		c, err := o.Peer.Connect(bounded)
		cancel()
		if err != nil {
			giveUp()
			done(rpcsession.Reply{}, k.Failed(o, err))
			k.Active.Leave()
			return
		}
		use(c)
	}) {
		giveUp()
		done(rpcsession.Reply{}, rpcsession.ErrClosed(o.Op))
		k.Active.Leave()
	}
}
