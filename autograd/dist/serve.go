// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	fault "github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/backcore"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rpcseam"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// exchange names a message and its answer.
type exchange struct {
	kind    backcore.Kind
	peer    backcore.Worker
	context backcore.Context
	pass    backcore.PassID
	call    backcore.Call
}

// waiter is a request of another worker that is answered when the machine says so. A nil cause is success.
type waiter struct {
	answered *fault.Promise[*backcore.Cause]
}

func completeAll(all []*waiter, cause *backcore.Cause) {
	for _, w := range all {
		w.answered.Complete(cause, nil)
	}
}

// sending is a message that is to be sent.
type sending struct {
	key exchange
	msg message
	p   *pass // of a Mark or Grad
	c   *Context
}

// sendLocked decides what happens to a message of the machine.
func (e *Engine) sendLocked(m *machine, msg message, w *work) {
	if msg.To == msg.From && msg.Kind != backcore.Done && msg.Kind != backcore.Fail {
		m.Receive(msg)
		return
	}
	c := e.mu.contexts[msg.Context]
	s := sending{key: exchange{msg.Kind, msg.To, msg.Context, msg.Pass, msg.Call}, msg: msg, c: c}
	switch msg.Kind { //nolint:exhaustive // the others are sent as they are
	case backcore.Told, backcore.Cleaned, backcore.Noted:
		return // the request is answered where it is served
	case backcore.Done:
		if msg.To == msg.From {
			m.Receive(msg)
			return
		}
		key := exchange{msg.Wave, msg.To, msg.Context, msg.Pass, msg.Call}
		completeAll(e.mu.waiters[key], nil)
		delete(e.mu.waiters, key)
		return
	case backcore.Fail:
		told := false
		for key, waiting := range e.mu.waiters {
			if key.peer == msg.To && key.context == msg.Context && key.pass == msg.Pass {
				cause := msg.Cause
				completeAll(waiting, &cause)
				delete(e.mu.waiters, key)
				told = true
			}
		}
		if told || msg.To == msg.From || !e.isGo(msg.To) {
			m.Receive(message{Kind: backcore.Told, From: msg.To, To: msg.From, Context: msg.Context, Pass: msg.Pass})
			return
		}
	case backcore.Mark, backcore.Grad:
		if s.p = c.pass(msg.Pass); s.p == nil {
			return
		}
	}
	if e.mu.flying[s.key] {
		return
	}
	e.mu.flying[s.key] = true
	w.sends = append(w.sends, s)
}

func (e *Engine) isGo(id backcore.Worker) bool {
	w, err := e.agent.Worker(int(id))
	return err == nil && w.Go
}

// controlTimeout bounds messages about passes and contexts, which are answered at once.
const controlTimeout = 5 * time.Second

// send sends a message, waits for the answer and tells the machine.
func (e *Engine) send(ctx context.Context, s sending) work {
	moment.At("autograd.dist.send")
	answer, err := e.transfer(ctx, s)
	moment.At("autograd.dist.sent")
	return e.step(func(m *machine) {
		delete(e.mu.flying, s.key)
		back := message{From: s.msg.To, To: s.msg.From, Context: s.msg.Context, Pass: s.msg.Pass, Call: s.msg.Call}
		switch s.msg.Kind { //nolint:exhaustive // the requests
		case backcore.Mark, backcore.Grad:
			if s.p.c.passes[s.p.id] != s.p {
				return // it is over
			}
			switch cause := e.lostCause(s, err); {
			case cause != nil && errors.Is(s.p.ctx.Err(), context.DeadlineExceeded):
				m.Failed(s.msg.Context, s.msg.Pass, s.p.lateLocked(m))
			case cause != nil:
				m.Failed(s.msg.Context, s.msg.Pass, *cause)
			case err != nil: // the machine sends it again
			case answer != nil && len(answer.Payload) > 0 && answer.Payload[0] == goForm:
				failed, _, bad := cutCause(answer.Payload[1:])
				if bad != nil {
					failed = backcore.Cause{Worker: s.msg.To, Code: int(fault.Protocol), Text: bad.Error()}
				}
				m.Failed(s.msg.Context, s.msg.Pass, failed)
			default:
				back.Kind, back.Wave, back.Mode = backcore.Done, s.msg.Kind, s.msg.Mode
				m.Receive(back)
			}
		case backcore.Fail:
			if err == nil {
				back.Kind = backcore.Told
				m.Receive(back)
			}
		case backcore.Cleanup:
			if err == nil || fault.CodeOf(err) == fault.Remote {
				back.Kind = backcore.Cleaned
				m.Receive(back)
			}
		case backcore.Seen:
			switch {
			case err != nil:
			case len(answer.Payload) > 0 && answer.Payload[0] == 0:
				back.Kind = backcore.Cleanup
				m.Receive(back)
			default:
				if c := e.mu.contexts[s.msg.Context]; c != nil {
					c.seen = time.Now()
				}
				back.Kind = backcore.Noted
				m.Receive(back)
			}
		}
	})
}

// lostCause says why a pass cannot go on, or nil when it can: when there is no error, or one that passes.
func (e *Engine) lostCause(s sending, err error) *backcore.Cause {
	if err == nil {
		return nil
	}
	code := fault.CodeOf(err)
	cause := &backcore.Cause{Worker: s.msg.To, Code: int(code), Text: err.Error()}
	if f, ok := err.(*fault.Error); ok && f.Detail != "" { //nolint:errorlint // of the agent itself
		cause.Text = f.Detail
	}
	if e.isGo(s.msg.To) && (code == fault.PeerLost || code == fault.Unavailable) {
		return nil // a link was lost; whether the worker was, will be seen
	}
	return cause
}

// transfer sends a message in the form that the other worker understands.
func (e *Engine) transfer(ctx context.Context, s sending) (*rpcwire.Message, error) {
	to := int(s.msg.To)
	switch s.msg.Kind {
	case backcore.Mark, backcore.Grad:
		// It ends with the pass, not with the request that brought it here: that may be sent again.
		deadline, _ := s.p.ctx.Deadline()
		bounded, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
		defer context.AfterFunc(s.p.ctx, cancel)()
		ctx = bounded
	default:
		bounded, cancel := context.WithTimeout(ctx, controlTimeout)
		defer cancel()
		ctx = bounded
	}
	if s.msg.Kind == backcore.Cleanup {
		payload, err := rpcwire.EncodeCleanup(int64(idOf(s.msg.Context)))
		if err != nil {
			return nil, err
		}
		return e.agent.Send(ctx, to, &rpcwire.Message{Type: rpcwire.CleanupAutogradReq, Payload: payload})
	}
	if s.msg.Kind == backcore.Grad {
		if err := s.fill(); err != nil {
			return nil, err
		}
	}
	if e.isGo(s.msg.To) {
		return e.agent.Send(ctx, to, encodeMessage(s.msg))
	}
	switch s.msg.Kind { //nolint:exhaustive // what there is towards PyTorch
	case backcore.Grad:
		enc := &rpcwire.Encoder{}
		b := rpcwire.Backward{ContextID: int64(idOf(s.msg.Context)), MessageID: number(s.msg.Call), RetainGraph: s.msg.Gradient.retain}
		for _, t := range s.msg.Gradient.ts {
			b.Gradients = append(b.Gradients, t)
		}
		payload, err := enc.Backward(b)
		if err != nil {
			return nil, err
		}
		return e.agent.Send(ctx, to, &rpcwire.Message{Type: rpcwire.BackwardAutogradReq, Payload: payload, Tensors: enc.Tensors})
	case backcore.Seen:
		_, err := e.agent.Call(ctx, to, "torch.distributed.autograd._is_valid_context", int64(idOf(s.msg.Context)))
		if err != nil && strings.Contains(err.Error(), "Could not find autograd context") {
			return &rpcwire.Message{Payload: []byte{0}}, nil
		}
		return &rpcwire.Message{Payload: []byte{1}}, err
	}
	return nil, fault.Newf("autograd: message", fault.Internal, "a message of kind %d to a PyTorch worker", s.msg.Kind)
}

// fill makes zeros of the gradients that are missing: a PyTorch worker expects one per tensor.
func (s *sending) fill() error {
	s.p.c.e.mu.Lock()
	pt := s.p.c.calls[s.msg.Call]
	s.p.c.e.mu.Unlock()
	if pt == nil {
		return fault.New("autograd: backward", fault.Internal, "the message is not known")
	}
	g := gradient{ts: make([]*tensor.Tensor, len(pt.kind)), retain: s.p.retain}
	if s.msg.Gradient != nil {
		copy(g.ts, s.msg.Gradient.ts)
	}
	for i, t := range g.ts {
		if t == nil {
			var err error
			if g.ts[i], err = tensor.New(pt.kind[i].DType(), pt.kind[i].Shape()...); err != nil {
				return err
			}
		}
	}
	s.msg.Gradient = &g
	return nil
}

// Kinds is called by the agent.
func (e *Engine) Kinds() []rpcwire.Type {
	return []rpcwire.Type{rpcwire.BackwardAutogradReq, rpcwire.CleanupAutogradReq, rpcwire.RRefBackwardReq}
}

// Functions is called by the agent.
func (e *Engine) Functions() map[string]rpcseam.Function { return nil }

// Serve is called by the agent for messages of passes and clean-ups.
func (e *Engine) Serve(ctx context.Context, from rpcseam.Worker, in *rpcwire.Message) (*rpcwire.Message, error) {
	if from.ID < 0 {
		return nil, fault.Newf("autograd: message", fault.Protocol, "%q is no worker of this world", from.Name)
	}
	switch in.Type { //nolint:exhaustive // those of Kinds
	case rpcwire.CleanupAutogradReq:
		id, err := rpcwire.DecodeCleanup(in.Payload)
		if err != nil {
			return nil, err
		}
		e.received(from, message{Kind: backcore.Cleanup, Context: ID(id).context()})
		return &rpcwire.Message{Type: rpcwire.CleanupAutogradResp}, nil
	case rpcwire.RRefBackwardReq:
		return e.serveRef(ctx, from, in)
	}
	answer := &rpcwire.Message{Type: rpcwire.BackwardAutogradResp}
	if len(in.Payload) == 0 || in.Payload[0] != goForm {
		msg, err := torchGradient(e.agent.Self().ID, in)
		if err != nil {
			return nil, err
		}
		cause, err := e.serveWave(ctx, from, msg)
		if err == nil && cause != nil {
			err = e.failure(*cause)
		}
		return answer, err
	}
	msg, err := decodeMessage(in)
	if err != nil {
		return nil, err
	}
	switch msg.Kind { //nolint:exhaustive // the others are answers
	case backcore.Mark, backcore.Grad:
		cause, err := e.serveWave(ctx, from, msg)
		if err == nil && cause != nil {
			answer.Payload = appendCause([]byte{goForm}, *cause)
		}
		return answer, err
	case backcore.Fail:
		e.received(from, msg)
		return answer, nil
	case backcore.Seen:
		e.received(from, msg)
		answer.Payload = []byte{0}
		if e.Context(idOf(msg.Context)) != nil {
			answer.Payload[0] = 1
		}
		return answer, nil
	}
	return nil, badMessage("kind %d is no request", msg.Kind)
}

// received tells the machine of a message that is answered at once.
func (e *Engine) received(from rpcseam.Worker, msg message) {
	msg.From, msg.To = backcore.Worker(from.ID), e.self() //nolint:gosec // 16 bits
	e.spawn(e.step(func(m *machine) {
		m.PeerBack(msg.From)
		m.Receive(msg)
	}))
}

// serveWave handles a Mark or Grad and waits until all that it has brought about is done.
func (e *Engine) serveWave(ctx context.Context, from rpcseam.Worker, msg message) (*backcore.Cause, error) {
	msg.From, msg.To = backcore.Worker(from.ID), e.self() //nolint:gosec // 16 bits
	waiting := &waiter{fault.NewPromise[*backcore.Cause]()}
	key := exchange{msg.Kind, msg.From, msg.Context, msg.Pass, msg.Call}
	var p *pass
	moment.At("autograd.dist.serve")
	w := e.step(func(m *machine) {
		m.PeerBack(msg.From)
		e.mu.waiters[key] = append(e.mu.waiters[key], waiting)
		if c := e.mu.contexts[msg.Context]; c != nil && !m.Over(msg.Context, msg.Pass) {
			p = c.enterLocked(ctx, msg.Pass, false)
			if msg.Gradient != nil && p.starts == nil {
				p.retain = msg.Gradient.retain
			}
		}
		m.Receive(msg)
		if p != nil && !m.Runs(msg.Context, msg.Pass) { // there are too many
			delete(p.c.passes, p.id)
			p.end(nil)
		}
	})
	defer e.forget(key, waiting)
	e.do(ctx, w)
	moment.At("autograd.dist.serve_await")
	return rpc.Await(ctx, waiting.answered.Future())
}

// forget drops a waiter.
func (e *Engine) forget(key exchange, w *waiter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rest := e.mu.waiters[key]
	for i, x := range rest {
		if x == w {
			rest = append(rest[:i:i], rest[i+1:]...)
			break
		}
	}
	if len(rest) == 0 {
		delete(e.mu.waiters, key)
	} else {
		e.mu.waiters[key] = rest
	}
}

// torchGradient reads PyTorch's form of a gradient message.
func torchGradient(self int, in *rpcwire.Message) (m message, err error) {
	b, err := (&rpcwire.Decoder{Tensors: in.Tensors}).Backward(in.Payload)
	if err != nil {
		return m, err
	}
	g := &gradient{ts: make([]*tensor.Tensor, len(b.Gradients)), retain: b.RetainGraph}
	for i, v := range b.Gradients {
		t, ok := v.(*tensor.Tensor)
		if !ok {
			return m, badMessage("gradient %d is a %T: gradients are dense tensors", i, v)
		}
		g.ts[i] = t
	}
	return message{
		Kind: backcore.Grad, Mode: backcore.Foreign, Pass: backcore.NoID, Context: ID(b.ContextID).context(),
		Call: callOf(self, b.MessageID), Gradient: g,
	}, nil
}

// serveRef runs a pass from an object of this worker, for the holder of a reference.
func (e *Engine) serveRef(ctx context.Context, from rpcseam.Worker, in *rpcwire.Message) (*rpcwire.Message, error) {
	b, err := rpcwire.DecodeRRefBackward(in.Payload)
	if err != nil {
		return nil, err
	}
	var opts []PassOption
	if b.RetainGraph {
		opts = append(opts, RetainGraph())
	}
	c := e.Context(ID(b.ContextID))
	if c == nil {
		return nil, fault.Newf("autograd: backward", fault.NotFound, "could not find autograd context with id %d: no message of it has reached this worker, or it is closed", b.ContextID)
	}
	if err := c.backwardOwn(ctx, from.ID, b.RRef, opts); err != nil {
		return nil, err
	}
	return &rpcwire.Message{Type: rpcwire.RRefBackwardResp}, nil
}

// backwardOwn runs a pass from an object of this worker.
func (c *Context) backwardOwn(ctx context.Context, holder int, id rpcwire.GlobalID, opts []PassOption) error {
	v, err := c.e.agent.Object(ctx, holder, id)
	if err != nil {
		return err
	}
	root, ok := v.(*autograd.Variable)
	if !ok {
		return fault.Newf("autograd: backward", fault.InvalidArgument, "the RRef should contain a tensor for .backward(): it refers to a %T", v)
	}
	return c.Backward(ctx, []*autograd.Variable{root}, opts...)
}

// BackwardRef runs a pass from the variable that a *rpc.Ref refers to, at its owner, which must have seen the context and decides
// about the mode: [Fast] has no effect. It corresponds to RRef.backward.
func (c *Context) BackwardRef(ctx context.Context, ref any, opts ...PassOption) error {
	id, owner, err := c.e.agent.Reference(ref)
	if err != nil {
		return err
	}
	if owner.ID == c.e.agent.Self().ID {
		return c.backwardOwn(ctx, owner.ID, id, opts)
	}
	o := optionsOf(opts)
	payload, err := rpcwire.RRefBackward{RRef: id, ContextID: int64(c.ID()), RetainGraph: o.retain}.Encode()
	if err != nil {
		return err
	}
	_, err = c.e.agent.Send(ctx, owner.ID, &rpcwire.Message{Type: rpcwire.RRefBackwardReq, Payload: payload})
	return err
}
