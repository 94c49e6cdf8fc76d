// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// Outgoing is a request that is about to be sent. Build makes it, for a Go worker or a PyTorch one.
type Outgoing struct {
	By       *Caller
	Op, Func string
	Mode     string // of a call
	Peer     *rpcsession.Peer
	Build    func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error)
	Repeat   func() bool // of a request that may arrive twice: whether its answer is still wanted when its link was lost

	Plain        bool             // not for the extension
	RunsUserCode bool             // what its answer causes may run code of the program
	ready        *built           // built early
	exchange     *rpcext.Exchange // how the extension takes part
	profiled     *profiled        // by the profile in the ctx of the call

	trace, span string // what its events carry
	noted       uint64 // its number among those that wait
}

// built is a request that was built before there was a session to send it on.
type built struct {
	m     *rpcwire.Message
	wires []rrefcore.Wire
	flags uint8
	toGo  bool
	err   error
}

// Early builds a request before there is a session to send it on: the caller may close or change its arguments as soon
// as the call has returned. giveUp is for a request that is not sent at all.
func (o *Outgoing) Early(ctx context.Context) (giveUp func()) {
	refs := o.By.cfg.Refs
	b := &built{toGo: o.Peer.SpeaksCohort() || o.Peer == o.By.cfg.Self}
	b.m, b.wires, b.flags, b.err = o.Make(ctx, b.toGo)
	o.ready = b
	return func() {
		o.Lost()
		refs.Undecoded(o.Peer, b.wires)
	}
}

// Make builds the message of a request and lets the extension take part. The message must be sent, or Lost be called.
func (o *Outgoing) Make(ctx context.Context, toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
	if b := o.ready; b != nil {
		o.ready = nil
		if b.err != nil || b.toGo == toGo {
			return b.m, b.wires, b.flags, b.err
		}
		o.Lost() // it turned out to be another kind of worker
		o.By.cfg.Refs.Undecoded(o.Peer, b.wires)
	}
	m, wires, flags, err := o.Build(toGo)
	if err != nil {
		if inner, ok := errors.AsType[*cohort.Error](err); ok && inner.Peer == "" { // else it is about the owner of a reference
			err = Named("rpc: "+o.Op, o.Func, o.Peer, err)
		}
		return m, wires, flags, err
	}
	if o.Plain {
		return m, wires, flags, nil
	}
	if o.By.cfg.Outgoing != nil {
		if o.exchange, err = o.By.cfg.Outgoing(ctx, o.Peer, toGo, o.Func, m); err != nil {
			o.By.cfg.Refs.Undecoded(o.Peer, wires)
			return nil, nil, 0, err
		}
		if o.exchange != nil {
			m = o.exchange.Message
		}
	}
	if rec := rpcwire.ProfileFrom(ctx); rec != nil { // outside of what the extension wraps, as in PyTorch
		if m, err = o.profile(rec, m); err != nil {
			o.Lost()
			o.By.cfg.Refs.Undecoded(o.Peer, wires)
			return nil, nil, 0, err
		}
	}
	return m, wires, flags, nil
}

// Lost tells the extension and the profile that no answer will arrive.
func (o *Outgoing) Lost() {
	if p := o.profiled; p != nil {
		o.profiled = nil
		p.end(o.By, nil)
	}
	if x := o.exchange; x != nil {
		o.exchange = nil
		x.Lost()
	}
}

// Answered passes the answer to the profile and the extension, and makes it the answer to the inner request.
func (o *Outgoing) Answered(m *rpcwire.Message) error {
	if err := o.unprofile(m); err != nil {
		return err
	}
	x := o.exchange
	if x == nil {
		return nil
	}
	o.exchange = nil
	return x.Answered(m)
}

// profiled is a request that a profile records.
type profiled struct {
	rec   *rpcwire.ProfileRecorder
	name  string
	start time.Time
}

// profileName names a request as PyTorch's profiler does.
func (o *Outgoing) profileName() string {
	self, peer := o.By.cfg.Self.Name, o.Peer.Name
	switch o.Op {
	case "fetch":
		return "to_here#(" + self + ")->(" + peer + ")"
	case "call":
		return "rpc_" + o.Mode + "#" + rpcwire.ProfileName(o.Func) + "(" + self + " -> " + peer + ")"
	}
	return "rpc_" + o.Op + "#" + rpcwire.ProfileName(o.Func) + "(" + self + " -> " + peer + ")"
}

// profile wraps a request so that its callee profiles it too. A fetch runs nothing at its owner and is not wrapped, as in
// PyTorch.
func (o *Outgoing) profile(rec *rpcwire.ProfileRecorder, m *rpcwire.Message) (*rpcwire.Message, error) {
	if o.profiled == nil {
		o.profiled = &profiled{rec: rec, name: o.profileName(), start: time.Now()}
	}
	if o.Op == "fetch" {
		return m, nil
	}
	k := o.By
	p := rpcwire.Profiling{
		//nolint:gosec // 16 bits
		Inner: m.Type, Config: rpcwire.ProfileCPU(), ID: rpcwire.GlobalID{On: rpcwire.WorkerID(k.cfg.Rank), Local: k.profiles.Add(1)},
	}
	payload, err := p.WrapRequest(m.Payload)
	if err != nil {
		return nil, err
	}
	wrapped := *m
	wrapped.Type, wrapped.Payload = rpcwire.RunWithProfilingReq, payload
	return &wrapped, nil
}

// end records the request, and what ran at its callee.
func (p *profiled) end(k *Caller, spans []rpcwire.Span) {
	for i := range spans {
		spans[i].Name = p.name + "#remote_op: " + spans[i].Name
	}
	p.rec.Add(rpcwire.Span{Name: p.name, Worker: k.cfg.Rank, Start: p.start, Took: time.Since(p.start)})
	p.rec.Add(spans...)
}

// unprofile takes the callee's profile off an answer.
func (o *Outgoing) unprofile(m *rpcwire.Message) error {
	p := o.profiled
	if p == nil {
		return nil
	}
	o.profiled = nil
	if m.Type != rpcwire.RunWithProfilingResp {
		p.end(o.By, nil)
		return nil
	}
	x, inner, err := rpcwire.UnwrapProfiling(m.Payload)
	if err == nil && !x.Inner.IsResponse() {
		err = cohort.Newf("rpc: "+o.Op, cohort.Protocol, "a profiled %v as an answer", x.Inner)
	}
	p.end(o.By, x.Spans)
	m.Type, m.Payload = x.Inner, inner
	return err
}
