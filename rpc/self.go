// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/tensor"
)

// callSelf runs a function of this worker as if it had come over a wire: values are copied.
func (a *Agent) callSelf(ctx context.Context, o outgoing) (any, error) {
	if err := a.calls.enter(ctx); err != nil {
		return nil, err
	}
	defer a.calls.leave()
	fn := o.fn
	m, wires, _, err := o.build(true)
	if err != nil {
		return nil, err
	}
	started := a.begin(o)
	ch := make(chan reply, 1)
	r, err := a.deliver(m, a.deadline(ctx), ch)
	if err != nil {
		a.refs.undelivered(a.self, wires)
		a.end(o, started, err)
		return nil, err
	}
	pl := placeOf(ctx)
	pl.pause()
	defer pl.resume()
	bounded, cancel := contextUntil(ctx, a.deadline(ctx))
	defer cancel()
	var v any
	select {
	case x := <-ch:
		v, err = a.ownResult(fn, x)
	case <-bounded.Done():
		r.ctx.cancel(errGivenUp)
		err = callError("rpc: call", fn, a.name, dist.FromContext("rpc: call", bounded))
		a.background(func() { // what its answer brings is not wanted
			select {
			case x := <-ch:
				a.discardOwn(x)
			case <-a.ctx.Done():
			}
		})
	case <-a.ctx.Done():
		err = errClosed("call")
	}
	a.end(o, started, err)
	return v, err
}

func (a *Agent) ownResult(fn string, x reply) (any, error) {
	if x.err != nil {
		return nil, x.err
	}
	if x.msg.Type == rpcwire.Exception {
		return nil, exceptionError("rpc: call", fn, a.name, x.msg.Payload)
	}
	return a.result(fn, a.self, x)
}

// discardOwn closes the references in an answer of this worker to itself that nobody waits for.
func (a *Agent) discardOwn(x reply) {
	if x.err != nil || x.msg.Type == rpcwire.Exception {
		return
	}
	d := a.refs.decodingReply(a.self, x)
	dec := &rpcwire.Decoder{Tensors: x.msg.Tensors, Arrive: d.arrive}
	switch x.msg.Type { //nolint:exhaustive // the answers to calls
	case rpcwire.PythonRet:
		_, _ = dec.PythonRet(x.msg.Payload)
	case rpcwire.ScriptRet:
		_, _ = dec.ScriptRet(x.msg.Payload)
	}
	d.release()
}

// deliver hands a message of this worker to itself.
func (a *Agent) deliver(m *rpcwire.Message, deadline time.Time, ch chan reply) (*request, error) {
	tensors, err := cloneTensors(m.Tensors)
	if err != nil {
		return nil, err
	}
	r := &request{peer: a.self, kind: m.Type, payload: m.Payload, tensors: tensors, deadline: deadline}
	r.local = func(m *rpcwire.Message, err error) {
		if err == nil {
			m.Tensors, err = cloneTensors(m.Tensors)
		}
		ch <- reply{msg: m, err: err}
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
		case *rpcwire.Sparse:
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
