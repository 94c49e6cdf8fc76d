// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcserver"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/tensor"
)

var _ = rpcext.Provide(func(x rpcext.Extension) any { return withExtension(x) })

// withExtension lets another package of this module take part in calls and serve further types of messages. Distributed
// autograd is one; programs use the option that it offers. There can be one extension.
func withExtension(x rpcext.Extension) Option {
	return option(func(c *config) error {
		if c.extension != nil && x != nil {
			return cohort.New("rpc: join", cohort.InvalidArgument, "more than one extension")
		}
		c.extension = x
		return nil
	})
}

// attach introduces the extension to the agent.
func (a *Agent) attach() (err error) {
	if a.cfg.extension != nil {
		a.extension, err = rpcserver.Attach(a.cfg.extension, extensionAgent{a})
	}
	return err
}

// outgoing returns the function that passes requests to the extension before they are sent, or nil.
func (a *Agent) outgoing() func(context.Context, *rpcsession.Peer, bool, string, *rpcwire.Message) (*rpcext.Exchange, error) {
	if a.extension == nil {
		return nil
	}
	return func(ctx context.Context, to *rpcsession.Peer, toGo bool, fn string, m *rpcwire.Message) (*rpcext.Exchange, error) {
		w := rpcserver.ExtensionWorker(to)
		w.Go = toGo // as on the session on which it is sent
		return a.extension.Outgoing(ctx, w, fn, m)
	}
}

// extensionAgent is the agent as its extension sees it.
type extensionAgent struct{ a *Agent }

var _ rpcext.Agent = extensionAgent{}

func (s extensionAgent) Self() rpcext.Worker {
	return rpcext.Worker{Name: s.a.name, ID: int(s.a.id), Go: true}
}

func (s extensionAgent) Workers() []rpcext.Worker {
	all := []rpcext.Worker{s.Self()}
	for _, p := range s.a.net.Members() {
		all = append(all, rpcserver.ExtensionWorker(p))
	}
	slices.SortFunc(all, func(x, y rpcext.Worker) int { return x.ID - y.ID })
	return all
}

func (s extensionAgent) Worker(id int) (rpcext.Worker, error) {
	p, err := s.a.memberByID(id)
	if err != nil {
		return rpcext.Worker{}, err
	}
	return rpcserver.ExtensionWorker(p), nil
}

// memberByID returns a worker of the world, perhaps this one.
func (a *Agent) memberByID(id int) (*rpcsession.Peer, error) {
	if id == int(a.id) && a.self != nil {
		return a.self, nil
	}
	if id >= 0 && id <= maxWorkerID {
		if p := a.net.PeerByID(rrefcore.Worker(id)); p != nil {
			return p, nil
		}
	}
	return nil, cohort.Newf("rpc: worker", cohort.NotFound, "no worker has id %d", id)
}

func (s extensionAgent) Send(ctx context.Context, to int, m *rpcwire.Message) (*rpcwire.Message, error) {
	o, err := s.plain(to, "sync", m)
	if err != nil {
		return nil, err
	}
	x, err := s.a.transact(ctx, o)
	if err != nil {
		return nil, err
	}
	return x.Msg, nil
}

// plain is a message of the extension itself.
func (s extensionAgent) plain(to int, mode string, m *rpcwire.Message) (*rpcclient.Outgoing, error) {
	p, err := s.a.memberByID(to)
	if err != nil {
		return nil, err
	}
	o := &rpcclient.Outgoing{By: s.a.caller, Op: "call", Mode: mode, Func: m.Type.String(), Peer: p, Plain: true, RunsUserCode: true}
	o.Build = func(bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		sent := *m
		return &sent, nil, 0, nil
	}
	return o, nil
}

// largePost is the size from which on a message is sent by a goroutine of its own: its sender waits for the write, and a goroutine that
// reads must not wait.
const largePost = 16 << 10

// large reports whether the sender of a message may have to wait for its write.
func large(m *rpcwire.Message) bool {
	size := len(m.Payload)
	for _, t := range m.Tensors {
		if t, ok := t.(*tensor.Tensor); ok {
			size += t.NBytes()
		} else {
			return true
		}
	}
	return size >= largePost
}

func (s extensionAgent) Post(ctx context.Context, to int, m *rpcwire.Message, done func(*rpcwire.Message, error)) {
	a := s.a
	o, err := s.plain(to, "async", m)
	if err != nil {
		done(nil, err)
		return
	}
	report := func(x rpcsession.Reply, err error) {
		if err != nil {
			x.Msg = nil
		}
		done(x.Msg, err) // which may send another one
		a.caller.Active.Leave()
	}
	entered := a.caller.Active.TryEnter()
	if entered && o.Peer != a.self && o.Peer.SpeaksCohort() && !large(m) {
		a.post(ctx, o, report)
		return
	}
	if !a.net.Go(func() {
		if !entered {
			if err := a.caller.Active.Enter(ctx); err != nil {
				done(nil, err)
				return
			}
		}
		if o.Peer == a.self {
			report(a.server.ExchangeOwn(ctx, o))
			return
		}
		a.post(ctx, o, report)
	}) {
		if entered {
			a.caller.Active.Leave()
		}
		done(nil, rpcsession.ErrClosed("call"))
	}
}

func (s extensionAgent) Call(ctx context.Context, to int, fn string, args ...any) (any, error) {
	p, err := s.a.memberByID(to)
	if err != nil {
		return nil, err
	}
	return s.a.call(ctx, p.Name, fn, args)
}

func (s extensionAgent) Object(ctx context.Context, holder int, gid rpcwire.GlobalID) (any, error) {
	id, o := s.a.refs.Find(gid)
	if holder != int(s.a.id) { // as for a fetch: the call that makes it may come later
		var err error
		if o, err = s.a.refs.FetchArrived(rrefcore.Worker(holder), id); err != nil { //nolint:gosec // 16 bits
			return nil, err
		}
	}
	if o == nil {
		return nil, refFailure("use", id, s.a.name, rrefcore.Gone, nil)
	}
	return o.Get(ctx)
}

func (s extensionAgent) Reference(ref any) (rpcwire.GlobalID, rpcext.Worker, error) {
	core := coreOf(ref)
	if core == nil || core.Refs != s.a.refs {
		return rpcwire.GlobalID{}, rpcext.Worker{},
			cohort.Newf("rpc: reference", cohort.InvalidArgument, "a %T is not a reference of this agent", ref)
	}
	if core.Object != nil {
		return rpcref.Global(core.Object.ID), s.Self(), nil
	}
	owner, err := s.Worker(int(core.Handle.Wire.Owner))
	return rpcref.Global(core.Handle.Wire.ID), owner, err
}

func (s extensionAgent) Go(fn func(context.Context)) bool {
	return s.a.net.Go(func() { fn(s.a.net.Context) })
}
