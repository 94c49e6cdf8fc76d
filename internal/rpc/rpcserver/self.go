// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensortable"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// ExchangeOwn sends a request of this worker to itself and waits for the answer. The caller has counted it as active.
func (s *Server) ExchangeOwn(ctx context.Context, o *rpcclient.Outgoing) (rpcsession.Reply, error) {
	deadline := s.cfg.Caller.Deadline(ctx)
	m, wires, _, err := o.Make(ctx, true)
	if err != nil {
		return rpcsession.Reply{}, err
	}
	ch := make(chan rpcsession.Reply, 1)
	r, err := s.deliver(m, deadline, observe.Trace(ctx), ch)
	if err != nil {
		o.Lost()
		s.cfg.Refs.Undelivered(s.cfg.Self, wires)
		return rpcsession.Reply{}, err
	}
	pl := rpcslots.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	bounded, cancel := rpcclient.Until(ctx, deadline)
	defer cancel()
	failpoint.At("rpc.self.wait")
	select {
	case x := <-ch:
		return s.ownAnswer(o, x)
	case <-bounded.Done():
		if r.execution != nil {
			r.ctx.Cancel(rpcsession.ErrCallerCanceled)
		}
		o.Lost()
		s.cfg.Net.Background(func() { // the references in its answer are not wanted
			failpoint.At("rpc.self.late")
			select {
			case x := <-ch:
				s.discardOwn(x)
			case <-s.cfg.Net.Context.Done():
			}
		})
		return rpcsession.Reply{}, rpcclient.Named("rpc: "+o.Op, o.Func, s.cfg.Self, cohort.FromContext(bounded, "rpc: "+o.Op))
	case <-s.cfg.Net.Context.Done():
		o.Lost()
		return rpcsession.Reply{}, rpcsession.ErrClosed(o.Op)
	}
}

// ownAnswer evaluates the answer of this worker to itself.
func (s *Server) ownAnswer(o *rpcclient.Outgoing, x rpcsession.Reply) (rpcsession.Reply, error) {
	err := x.Err
	if err == nil && x.Msg.Type == rpcwire.Exception {
		err = rpcclient.Named("rpc: "+o.Op, o.Func, s.cfg.Self, s.cfg.Caller.Exception("rpc: "+o.Op, o.Func, s.cfg.Name, x.Msg.Payload))
	}
	if err != nil {
		o.Lost()
		return x, err
	}
	return x, o.Answered(x.Msg)
}

// discardOwn closes the references in an answer of this worker to itself that is not awaited any more.
func (s *Server) discardOwn(x rpcsession.Reply) {
	if x.Err == nil {
		s.cfg.Refs.DiscardAnswer(s.cfg.Self, x.Msg)
	}
}

// deliver hands a message of this worker to itself.
func (s *Server) deliver(m *rpcwire.Message, deadline time.Time, trace string, ch chan rpcsession.Reply) (*request, error) {
	tensors, err := cloneTensors(m.Tensors)
	if err != nil {
		return nil, err
	}
	r := s.newRequest(&rpcsession.Incoming{
		Peer: s.cfg.Self, Kind: m.Type, Payload: m.Payload, Tensors: tensors,
		Deadline: deadline, Trace: trace,
	})
	r.local = func(m *rpcwire.Message, err error) {
		if err == nil {
			m.Tensors, err = cloneTensors(m.Tensors)
		}
		failpoint.At("rpc.self.answer")
		ch <- rpcsession.Reply{Msg: m, Err: err}
	}
	s.dispatch(r)
	return r, nil
}

// CreateOwn hands a creating call of this worker to itself.
func (s *Server) CreateOwn(ctx context.Context, o *rpcclient.Outgoing, obj *rpcref.Object) error {
	m, wires, _, err := o.Make(ctx, true)
	if err == nil {
		m.Tensors, err = cloneTensors(m.Tensors)
	}
	if err != nil {
		o.Lost()
		s.cfg.Refs.Undelivered(s.cfg.Self, wires)
		return err
	}
	if err = s.cfg.Caller.Active.Enter(ctx); err != nil {
		o.Lost()
		s.cfg.Refs.Undelivered(s.cfg.Self, wires)
		return err
	}
	r := s.newRequest(&rpcsession.Incoming{
		Peer: s.cfg.Self, Kind: m.Type, Payload: m.Payload, Tensors: m.Tensors,
		Trace: observe.Trace(ctx),
	})
	r.own, r.uncount = obj, sync.OnceFunc(s.cfg.Caller.Active.Leave)
	r.local = func(m *rpcwire.Message, _ error) {
		if m.Type != rpcwire.Exception {
			_ = o.Answered(m)
			return
		}
		o.Lost() // it was refused
		s.cfg.Refs.Created(obj, nil, s.cfg.Caller.Exception("rpc: remote", o.Func, s.cfg.Name, m.Payload), true)
		r.uncount()
	}
	s.dispatch(r)
	return nil
}

// cloneTensors copies the tensors of a message to oneself as a wire would: views of one storage share the copy.
func cloneTensors(in []any) ([]any, error) {
	out := make([]any, len(in))
	var copies map[*tensor.Storage]*tensor.Storage
	dense := func(t *tensor.Tensor) (*tensor.Tensor, error) {
		c, err := tensortable.Compact(t)
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
