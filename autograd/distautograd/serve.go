// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/rpc"
)

// dispatch handles the messages of passes and clean-ups.
func (e *Engine) dispatch(ctx context.Context, from rpcext.Worker, in *rpcwire.Message, reply func(*rpcwire.Message, error)) {
	if from.ID < 0 {
		reply(nil, cohort.Newf("distautograd: message", cohort.Protocol, "%q is not a worker of this world", from.Name))
		return
	}
	switch {
	case in.Type == rpcwire.CleanupAutogradReq:
		reply(e.serveCleanup(from, in))
	case in.Type == rpcwire.RRefBackwardReq:
		reply(e.serveRef(ctx, from, in))
	case isCleanups(in):
		reply(e.serveCleanups(from, in))
	case len(in.Payload) > 0 && in.Payload[0] == goForm:
		e.serveGo(ctx, from, in, reply)
	default:
		msg, err := torchGradient(e.agent.Self().ID, in)
		if err != nil {
			reply(nil, err)
			return
		}
		e.serveWave(ctx, from, msg, func(failed *backwardcore.Cause, _ []carried) {
			if failed != nil {
				reply(nil, e.failure(*failed))
				return
			}
			reply(&rpcwire.Message{Type: rpcwire.BackwardAutogradResp}, nil)
		})
	}
}

// serveCleanup handles PyTorch's form of a clean-up.
func (e *Engine) serveCleanup(from rpcext.Worker, in *rpcwire.Message) (*rpcwire.Message, error) {
	id, err := rpcwire.DecodeCleanup(in.Payload)
	if err != nil {
		return nil, err
	}
	e.received(from, message{Kind: backwardcore.Cleanup, Context: ID(id).context()})
	return &rpcwire.Message{Type: rpcwire.CleanupAutogradResp}, nil
}

// serveCleanups handles the clean-ups of a Go worker.
func (e *Engine) serveCleanups(from rpcext.Worker, in *rpcwire.Message) (*rpcwire.Message, error) {
	all, err := decodeCleanups(in)
	if err != nil {
		return nil, err
	}
	msgs := make([]message, len(all))
	for i, c := range all {
		msgs[i] = message{Kind: backwardcore.Cleanup, Context: c}
	}
	e.received(from, msgs...)
	return &rpcwire.Message{Type: rpcwire.BackwardAutogradResp}, nil
}

// serveGo handles a message of a Go worker about a pass.
func (e *Engine) serveGo(ctx context.Context, from rpcext.Worker, in *rpcwire.Message, reply func(*rpcwire.Message, error)) {
	msg, err := decodeMessage(in)
	if err != nil {
		reply(nil, err)
		return
	}
	back := &rpcwire.Message{Type: rpcwire.BackwardAutogradResp}
	switch msg.Kind {
	case backwardcore.Mark, backwardcore.Grad:
		e.serveWave(ctx, from, msg, func(failed *backwardcore.Cause, all []carried) {
			reply(encodeAnswer(failed, all), nil)
		})
	case backwardcore.Fail:
		e.received(from, msg)
		reply(back, nil)
	case backwardcore.Seen:
		e.received(from, msg)
		back.Payload = []byte{0}
		if e.Context(idOf(msg.Context)) != nil {
			back.Payload[0] = 1
		}
		reply(back, nil)
	default:
		reply(nil, badMessage("kind %d is not a request", msg.Kind))
	}
}

// received tells the machine of messages that are answered at once.
func (e *Engine) received(from rpcext.Worker, msgs ...message) {
	peer := backwardcore.Worker(from.ID) //nolint:gosec // 16 bits
	e.after(e.step(func(m *machine) {
		m.PeerBack(peer)
		for _, msg := range msgs {
			msg.From, msg.To = peer, e.self()
			m.Receive(msg)
		}
	}))
}

// serveWave handles a Mark or Grad. It is answered when all that it has brought about is done.
func (e *Engine) serveWave(ctx context.Context, from rpcext.Worker, msg message, reply answer) {
	msg.From, msg.To = backwardcore.Worker(from.ID), e.self() //nolint:gosec // 16 bits
	key := exchange{msg.Kind, msg.From, msg.Context, msg.Pass, msg.Call}
	var former answer
	serves := false
	failpoint.At("distautograd.serve")
	w := e.step(func(m *machine) {
		serves = true
		m.PeerBack(msg.From)
		former, e.mu.waiters[key] = e.mu.waiters[key], reply
		var p *pass
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
	if former != nil { // its sender waits for the new one
		former(&backwardcore.Cause{Worker: msg.To, Code: int(cohort.Aborted), Text: "the message is a duplicate"}, nil)
	}
	if !serves {
		reply(&backwardcore.Cause{Worker: msg.To, Code: int(cohort.Closed), Text: "the agent is closed"}, nil)
	}
	e.serve(w)
}

// torchGradient reads PyTorch's form of a gradient message.
func torchGradient(self int, in *rpcwire.Message) (m message, err error) {
	b, err := (&rpcwire.Decoder{Tensors: in.Tensors}).Backward(in.Payload)
	if err != nil {
		return m, err
	}
	g := &gradient{ts: make([]autograd.Value, len(b.Gradients)), retain: b.RetainGraph}
	for i, v := range b.Gradients {
		var ok bool
		if g.ts[i], ok = valueOf(v); !ok {
			return m, badMessage("gradient %d is a %T, no tensor", i, v)
		}
	}
	return message{
		Kind: backwardcore.Grad, Mode: backwardcore.Foreign, Pass: backwardcore.NoID, Context: ID(b.ContextID).context(),
		Call: callOf(self, b.MessageID), Gradient: g,
	}, nil
}

// serveRef runs a pass from an object of this worker, for the holder of a reference.
func (e *Engine) serveRef(ctx context.Context, from rpcext.Worker, in *rpcwire.Message) (*rpcwire.Message, error) {
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
		return nil, cohort.Newf("distautograd: backward", cohort.NotFound,
			"could not find autograd context with id %d: no message of it has reached this worker, or it is closed", b.ContextID)
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
		return cohort.Newf("distautograd: backward", cohort.InvalidArgument,
			"the RRef should contain a tensor for .backward(): it refers to a %T", v)
	}
	return c.Backward(ctx, []*autograd.Variable{root}, opts...)
}

// BackwardRef runs a pass from the variable that a reference refers to, at its owner, which must have seen the context and decides
// about the mode: [Fast] has no effect. It corresponds to RRef.backward.
func (c *Context) BackwardRef(ctx context.Context, ref rpc.AnyRef, opts ...PassOption) error {
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
