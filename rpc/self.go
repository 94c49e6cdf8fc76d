// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rpccall"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// callSelf runs a function of this worker as if it had come over a wire: values are copied. The caller has counted the call
// as active.
func (a *Agent) callSelf(ctx context.Context, o *rpccall.Outgoing) (any, error) {
	started := a.caller.Begin(ctx, o)
	x, err := a.exchangeSelf(ctx, o)
	var v any
	if err == nil {
		v, err = a.result(o.Func, a.self, x)
	}
	if err != nil && a.net.Context.Err() != nil {
		err = rpclink.ErrClosed(o.Op) // the end of the agent has ended the handler, whatever that made of it
	}
	a.caller.End(o, started, err)
	return v, err
}

// exchangeSelf is exchange with this worker itself, but for the count of active calls, which is the caller's affair.
func (a *Agent) exchangeSelf(ctx context.Context, o *rpccall.Outgoing) (rpclink.Reply, error) {
	deadline := a.caller.Deadline(ctx)
	m, wires, _, err := o.Make(ctx, true)
	if err != nil {
		return rpclink.Reply{}, err
	}
	ch := make(chan rpclink.Reply, 1)
	r, err := a.deliver(m, deadline, observe.Trace(ctx), ch)
	if err != nil {
		o.Lost()
		a.refs.Undelivered(a.self, wires)
		return rpclink.Reply{}, err
	}
	pl := rpcplace.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	bounded, cancel := rpccall.Until(ctx, deadline)
	defer cancel()
	moment.At("rpc.self.wait")
	select {
	case x := <-ch:
		return a.ownAnswer(o, x)
	case <-bounded.Done():
		r.ctx.Cancel(rpclink.ErrGivenUp)
		o.Lost()
		a.net.Background(func() { // what its answer brings is not wanted
			select {
			case x := <-ch:
				a.discardOwn(x)
			case <-a.net.Context.Done():
			}
		})
		return rpclink.Reply{}, rpccall.Named("rpc: "+o.Op, o.Func, a.self, dist.FromContext("rpc: "+o.Op, bounded))
	case <-a.net.Context.Done():
		o.Lost()
		return rpclink.Reply{}, rpclink.ErrClosed(o.Op)
	}
}

// ownAnswer looks at what this worker has answered itself.
func (a *Agent) ownAnswer(o *rpccall.Outgoing, x rpclink.Reply) (rpclink.Reply, error) {
	err := x.Err
	if err == nil && x.Msg.Type == rpcwire.Exception {
		err = rpccall.Named("rpc: "+o.Op, o.Func, a.self, exceptionError("rpc: "+o.Op, o.Func, a.name, x.Msg.Payload))
	}
	if err != nil {
		o.Lost()
		return x, err
	}
	return x, o.Answered(x.Msg)
}

// discardOwn closes the references in an answer of this worker to itself that nobody waits for.
func (a *Agent) discardOwn(x rpclink.Reply) {
	if x.Err != nil || x.Msg.Type == rpcwire.Exception {
		return
	}
	d := a.refs.Decoding(a.self, x.Frame, x.Msg.Tensors)
	switch x.Msg.Type { //nolint:exhaustive // the answers to calls
	case rpcwire.PythonRet:
		_, _ = d.PythonRet(x.Msg.Payload)
	case rpcwire.ScriptRet:
		_, _ = d.ScriptRet(x.Msg.Payload)
	}
	d.Release()
}

// deliver hands a message of this worker to itself.
func (a *Agent) deliver(m *rpcwire.Message, deadline time.Time, trace string, ch chan rpclink.Reply) (*request, error) {
	tensors, err := cloneTensors(m.Tensors)
	if err != nil {
		return nil, err
	}
	r := &request{Incoming: rpclink.Incoming{Peer: a.self, Kind: m.Type, Payload: m.Payload, Tensors: tensors, Deadline: deadline, Trace: trace}, a: a}
	r.local = func(m *rpcwire.Message, err error) {
		if err == nil {
			m.Tensors, err = cloneTensors(m.Tensors)
		}
		ch <- rpclink.Reply{Msg: m, Err: err}
	}
	a.dispatch(r)
	return r, nil
}

// cloneTensors copies the tensors of a message to oneself as a wire would: views of one storage share the copy.
func cloneTensors(in []any) ([]any, error) {
	out := make([]any, len(in))
	var copies map[*tensor.Storage]*tensor.Storage
	dense := func(t *tensor.Tensor) (*tensor.Tensor, error) {
		c, err := rpcwire.Compact(t)
		if err != nil || c != t {
			return c, err
		}
		st := copies[t.Storage()]
		if st == nil {
			from, failed := t.Storage().Bytes()
			if failed != nil {
				return nil, failed
			}
			if st, err = tensor.NewStorage(len(from)); err != nil {
				return nil, err
			}
			to, failed := st.Bytes()
			if failed != nil {
				return nil, failed
			}
			copy(to, from)
			if copies == nil {
				copies = map[*tensor.Storage]*tensor.Storage{}
			}
			copies[t.Storage()] = st
		}
		if c, err = tensor.FromStorage(st, t.DType(), t.Shape(), t.Strides(), t.Offset()); err != nil {
			return nil, err
		}
		return c.SetRequiresGrad(t.RequiresGrad()), nil
	}
	for i, t := range in {
		var err error
		switch t := t.(type) {
		case *tensor.Tensor:
			out[i], err = dense(t)
		case *tensor.Sparse:
			twin := *t
			if twin.Indices, err = dense(t.Indices); err == nil {
				twin.Values, err = dense(t.Values)
			}
			out[i] = &twin
		default:
			out[i] = t
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
