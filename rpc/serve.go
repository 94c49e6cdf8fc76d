// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcserver"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// owner is the agent in the contexts of its handlers.
type owner struct{ a *Agent }

var _ rpcslots.Owner = owner{}

func (o owner) Overdue() {
	o.a.cfg.logger.Warn("a handler does not return although its caller is gone: its slot is given to others",
		slog.String("worker", o.a.name))
}

// AgentFrom returns the agent that runs a handler, given the handler's ctx or one derived from it; otherwise nil. It
// corresponds to the process-wide agent that a PyTorch function finds.
func AgentFrom(ctx context.Context) *Agent {
	o, _ := ctx.Value(rpcslots.OwnerKey{}).(owner)
	return o.a
}

// program is the agent as it serves calls.
type program struct{ a *Agent }

var _ rpcserver.Program = program{}

// Find looks up the function of a call: one of the agent's own, or one of the registry.
func (p program) Find(c *rpcserver.Call) error {
	if c.Schema != "" {
		return nil
	}
	h := p.a.internal(c.Func)
	if h == nil {
		h = p.a.cfg.registry.lookup(c.Func)
	}
	if h == nil {
		return p.a.unknownFunction(c.Func)
	}
	c.Function, c.Borrows = h, h.borrow
	return nil
}

func (p program) Intercept(ctx context.Context, c *rpcserver.Call) (context.Context, func(error), error) {
	if len(p.a.cfg.serving) == 0 {
		return ctx, nil, nil
	}
	return p.a.cfg.intercept(ctx, p.a.cfg.serving, callInfo(c.From.Name, c.Func, c.Args, c.Remote))
}

func (p program) Run(ctx context.Context, c *rpcserver.Call, done func(any, error)) (ran bool) {
	if c.Schema != "" {
		done(p.a.cfg.runKernel(c.Schema, c.Args))
		return true
	}
	h := c.Function.(*handler) //nolint:errcheck,forcetypeassert // found by Find
	return h.call(ctx, &Request{From: infoOf(c.From), Func: c.Func, Args: c.Args, Kwargs: c.Kwargs, conn: c.Conn}, done)
}

func (p program) Shown(fn string, args []any) string { return shown(fn, args) }

func (p program) Exception(err error, toGo bool) *rpcwire.RemoteException {
	return p.a.exception(err, toGo)
}

// Raised gives the error of this worker's own function its name, as a caller elsewhere would see it.
func (p program) Raised(err error) error {
	if remote, ok := err.(*RemoteError); ok && remote.Worker == "" { //nolint:errorlint // only the handler's own
		named := *remote
		named.Worker, named.near = p.a.name, true
		return &named
	}
	return err
}

func (a *Agent) unknownFunction(name string) error {
	return &RemoteError{
		Kind: "AttributeError", Code: cohort.NotFound,
		Message: fmt.Sprintf("the Go worker %q has no handler %q", a.name, name),
		hint: ". Default RPC pickler does not serialize function code. " +
			"Ensure that function definitions match on both caller and callee modules.",
	}
}

// above is the agent as its sessions see it.
type sessionHandler struct{ a *Agent }

var _ rpcsession.Handler = sessionHandler{}

func (u sessionHandler) NewPeer() any { return rpcref.NewPeer() }

func (u sessionHandler) Request(in rpcsession.Incoming) { u.a.server.Arrived(in) }

func (u sessionHandler) Connected(c *rpcsession.Conn) { u.a.refs.Connected(c) }

func (u sessionHandler) Control(c *rpcsession.Conn, payload []byte) { u.a.refs.Frame(c, payload) }

func (u sessionHandler) Discard(c *rpcsession.Conn, f *cohortwire.Frame) { u.a.refs.Discard(c, f) }

func (u sessionHandler) DiscardAnswer(p *rpcsession.Peer, m *rpcwire.Message) {
	u.a.refs.DiscardAnswer(p, m)
}

func (u sessionHandler) Undelivered(p *rpcsession.Peer, wires []rrefcore.Wire) {
	u.a.refs.Undelivered(p, wires)
}

func (u sessionHandler) HoldsReferences(p *rpcsession.Peer) bool { return u.a.refs.Tied(p) }

func (u sessionHandler) Died(p *rpcsession.Peer) {
	if u.a.refs == nil {
		return
	}
	u.a.refs.Died(p)
	if u.a.extension != nil && !u.a.refs.Former(p) {
		u.a.extension.Died(rpcserver.ExtensionWorker(p))
	}
}
