// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

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
		Inner: m.Type, Config: rpcwire.ProfileCPU(), ID: rpcwire.GlobalID{On: rpcwire.WorkerID(k.cfg.Rank), Local: k.profiles.Add(1)}, //nolint:gosec // 16 bits
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
