// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// exchange names a message and its answer.
type exchange struct {
	kind    backwardcore.Kind
	peer    backwardcore.Worker
	context backwardcore.Context
	pass    backwardcore.PassID
	call    backwardcore.Call
}

// answer answers a request of another worker: with why it failed, or with nil and what the answer carries.
type answer func(failed *backwardcore.Cause, carried []carried)

type carried = backwardcore.Carried[*gradient]

// failLocked answers requests that can have no other answer any more.
func (e *Engine) failLocked(w *work, cause backwardcore.Cause, which func(exchange) bool) (failed bool) {
	for key, reply := range e.mu.waiters {
		if which(key) {
			delete(e.mu.waiters, key)
			w.answers = append(w.answers, func() { reply(&cause, nil) })
			failed = true
		}
	}
	return failed
}

// sending is a message that is to be sent.
type sending struct {
	key   exchange
	msg   message
	p     *pass                  // of a Mark or Grad
	batch []backwardcore.Context // of a Cleanup of several contexts
}

// sendLocked decides what happens to a message of the machine.
func (e *Engine) sendLocked(m *machine, msg message, w *work) {
	if msg.To == msg.From && msg.Kind != backwardcore.Fail {
		m.Receive(msg)
		return
	}
	s := sending{key: exchange{msg.Kind, msg.To, msg.Context, msg.Pass, msg.Call}, msg: msg}
	switch msg.Kind { //nolint:exhaustive // the others are sent as they are
	case backwardcore.FailReceived, backwardcore.Cleaned, backwardcore.Noted:
		return // the request is answered where it is served
	case backwardcore.Done:
		key := exchange{msg.Wave, msg.To, msg.Context, msg.Pass, msg.Call}
		if reply := e.mu.waiters[key]; reply != nil {
			delete(e.mu.waiters, key)
			c, retain := e.mu.contexts[msg.Context], false
			if p := c.pass(msg.Pass); p != nil {
				retain = p.retain
			}
			w.answers = append(w.answers, func() {
				all, err := c.fillCarried(msg, retain)
				if err != nil {
					cause := e.cause(err)
					reply(&cause, nil)
					return
				}
				reply(nil, all)
			})
		}
		return
	case backwardcore.Fail:
		told := e.failLocked(w, msg.Cause, func(key exchange) bool {
			return key.peer == msg.To && key.context == msg.Context && key.pass == msg.Pass
		})
		if told || msg.To == msg.From || !e.isGo(msg.To) {
			m.Receive(message{Kind: backwardcore.FailReceived, From: msg.To, To: msg.From, Context: msg.Context, Pass: msg.Pass})
			return
		}
	case backwardcore.Mark, backwardcore.Grad:
		if s.p = e.mu.contexts[msg.Context].pass(msg.Pass); s.p == nil {
			return
		}
	}
	if e.mu.flying[s.key] {
		return
	}
	e.mu.flying[s.key] = true
	if msg.Kind == backwardcore.Cleanup && e.isGo(msg.To) {
		e.cleanupLocked(msg, w)
		return
	}
	w.sends = append(w.sends, s)
}

func (e *Engine) isGo(id backwardcore.Worker) bool {
	w, err := e.agent.Worker(int(id))
	return err == nil && w.Go
}

// drive does what is left to do after a step, in the goroutine that has begun a pass: it runs functions, and waits for the last
// answer itself.
func (e *Engine) drive(ctx context.Context, w work) {
	for {
		e.run(&w)
		var last *sending
		if n := len(w.sends); n > 0 && w.sends[n-1].p != nil {
			last = &w.sends[n-1]
			w.sends = w.sends[:n-1]
		}
		e.after(w)
		if last == nil {
			return
		}
		failpoint.At("distautograd.send")
		m, err := e.encode(*last)
		if err == nil {
			m, err = e.agent.Send(both{last.p.ctx, ctx}, int(last.msg.To), m)
		}
		w = e.sent(*last, m, err)
	}
}

// both is the first context with the values of the second one, too: the place of the handler that has begun the pass is there.
type both struct {
	context.Context //nolint:containedctx // it is one

	values context.Context //nolint:containedctx // see above
}

func (b both) Value(key any) any {
	if v := b.Context.Value(key); v != nil {
		return v
	}
	return b.values.Value(key)
}

// serve does what is left to do after a step, in the goroutine that handles a message: it runs functions.
func (e *Engine) serve(w work) {
	e.run(&w)
	e.after(w)
}

// after does what is left to do after a step, and does not block: functions run in a goroutine of their own.
func (e *Engine) after(w work) {
	if runs := w.runs; len(runs) > 0 {
		e.agent.Go(func(context.Context) { e.serve(work{runs: runs}) })
	}
	for _, s := range w.sends {
		e.post(s)
	}
	for _, reply := range w.answers {
		failpoint.At("distautograd.answer")
		reply()
	}
}

// controlTimeout bounds messages about passes and contexts, which are answered at once.
const controlTimeout = 5 * time.Second

// post sends a message. What its answer brings about is done by the goroutine that reads it.
func (e *Engine) post(s sending) {
	failpoint.At("distautograd.post")
	ctx, cancel := context.Background(), func() {}
	if s.p != nil {
		ctx = s.p.ctx // it ends with the pass, not with the request that brought it here: that may be sent again
	} else {
		ctx, cancel = context.WithTimeout(ctx, controlTimeout)
	}
	done := func(back *rpcwire.Message, err error) {
		cancel()
		e.serve(e.sent(s, back, err))
	}
	if s.msg.Kind == backwardcore.Seen && !e.isGo(s.msg.To) {
		if !e.agent.Go(func(context.Context) { done(e.askTorch(ctx, s)) }) {
			cancel()
		}
		return
	}
	m, err := e.encode(s)
	if err != nil {
		done(nil, err)
		return
	}
	e.agent.Post(ctx, int(s.msg.To), m, done)
}

// askTorch asks a PyTorch worker whether it still has a context that it has opened.
func (e *Engine) askTorch(ctx context.Context, s sending) (*rpcwire.Message, error) {
	_, err := e.agent.Call(ctx, int(s.msg.To), "torch.distributed.autograd._is_valid_context", int64(idOf(s.msg.Context)))
	if err != nil && strings.Contains(err.Error(), "Could not find autograd context") {
		return &rpcwire.Message{Payload: []byte{0}}, nil
	}
	return &rpcwire.Message{Payload: []byte{1}}, err
}

// sent reports to the machine what became of a message.
func (e *Engine) sent(s sending, back *rpcwire.Message, err error) work {
	failpoint.At("distautograd.sent")
	return e.step(func(m *machine) {
		delete(e.mu.flying, s.key)
		reply := message{From: s.msg.To, To: s.msg.From, Context: s.msg.Context, Pass: s.msg.Pass, Call: s.msg.Call}
		switch s.msg.Kind { //nolint:exhaustive // the requests
		case backwardcore.Mark, backwardcore.Grad:
			if s.p.c.passes[s.p.id] != s.p {
				return // it is over
			}
			switch cause := e.lostCause(s, err); {
			case cause != nil && errors.Is(s.p.ctx.Err(), context.DeadlineExceeded):
				m.Failed(s.msg.Context, s.msg.Pass, s.p.lateLocked(m))
			case cause != nil:
				m.Failed(s.msg.Context, s.msg.Pass, *cause)
			case err != nil: // the machine sends it again
			default:
				failed, carried, bad := decodeAnswer(s.msg.Kind, back)
				switch {
				case bad != nil:
					m.Failed(s.msg.Context, s.msg.Pass, backwardcore.Cause{Worker: s.msg.To, Code: int(cohort.Protocol), Text: bad.Error()})
				case failed != nil:
					m.Failed(s.msg.Context, s.msg.Pass, *failed)
				default:
					reply.Kind, reply.Wave, reply.Mode, reply.Carried = backwardcore.Done, s.msg.Kind, s.msg.Mode, carried
					m.Receive(reply)
				}
			}
		case backwardcore.Fail:
			if err == nil {
				reply.Kind = backwardcore.FailReceived
				m.Receive(reply)
			}
		case backwardcore.Cleanup:
			e.cleanedLocked(m, s, err)
		case backwardcore.Seen:
			switch {
			case err != nil:
			case len(back.Payload) > 0 && back.Payload[0] == 0:
				reply.Kind = backwardcore.Cleanup
				m.Receive(reply)
			default:
				if c := e.mu.contexts[s.msg.Context]; c != nil {
					c.seen = time.Now()
				}
				reply.Kind = backwardcore.Noted
				m.Receive(reply)
			}
		}
	})
}

// lostCause says why a pass cannot go on, or nil when it can: when nothing failed, or the error is temporary.
func (e *Engine) lostCause(s sending, err error) *backwardcore.Cause {
	if err == nil {
		return nil
	}
	code := cohort.CodeOf(err)
	cause := &backwardcore.Cause{Worker: s.msg.To, Code: int(code), Text: err.Error()}
	if f, ok := err.(*cohort.Error); ok && f.Detail != "" { //nolint:errorlint // of the agent itself
		cause.Text = f.Detail
	}
	switch {
	case code == cohort.Closed:
		return nil // this agent is: what waits for it sees that
	case e.isGo(s.msg.To) && (code == cohort.PeerLost || code == cohort.Unavailable):
		return nil // a link was lost; whether the worker was, will be seen
	}
	return cause
}

// encode puts a message into the form that the other worker understands.
func (e *Engine) encode(s sending) (*rpcwire.Message, error) {
	if s.batch != nil {
		return encodeCleanups(s.batch), nil
	}
	if s.msg.Kind == backwardcore.Cleanup {
		payload, err := rpcwire.EncodeCleanup(int64(idOf(s.msg.Context)))
		return &rpcwire.Message{Type: rpcwire.CleanupAutogradReq, Payload: payload}, err
	}
	if s.msg.Kind == backwardcore.Grad {
		if err := s.fill(); err != nil {
			return nil, err
		}
	}
	if e.isGo(s.msg.To) {
		return encodeMessage(s.msg), nil
	}
	if s.msg.Kind != backwardcore.Grad {
		return nil, cohort.Newf("distautograd: message", cohort.Internal, "a message of kind %d to a PyTorch worker", s.msg.Kind)
	}
	enc := &rpcwire.Encoder{}
	b := rpcwire.Backward{ContextID: int64(idOf(s.msg.Context)), MessageID: number(s.msg.Call), RetainGraph: s.msg.Gradient.retain}
	for _, t := range s.msg.Gradient.ts {
		b.Gradients = append(b.Gradients, tensorOf(t))
	}
	payload, err := enc.Backward(b)
	return &rpcwire.Message{Type: rpcwire.BackwardAutogradReq, Payload: payload, Tensors: enc.Tensors}, err
}

// fill makes zeros of the gradients that are missing: a PyTorch worker expects one per tensor.
func (s *sending) fill() (err error) {
	s.msg.Gradient, err = s.p.c.filled(s.msg.Call, s.msg.Gradient, s.p.retain)
	return err
}

// fillCarried does the same with the gradients that an answer carries.
func (c *Context) fillCarried(msg message, retain bool) (all []carried, err error) {
	for _, x := range msg.Carried {
		if msg.Wave == backwardcore.Grad {
			if x.Gradient, err = c.filled(x.Call, x.Gradient, retain); err != nil {
				return nil, err
			}
		}
		all = append(all, x)
	}
	return all, nil
}

// filled returns gradients of what a message has brought without any missing.
func (c *Context) filled(call backwardcore.Call, some *gradient, retain bool) (*gradient, error) {
	failpoint.At("distautograd.filled")
	c.e.mu.Lock()
	pt := c.calls[call]
	c.e.mu.Unlock()
	if pt == nil {
		return nil, cohort.New("distautograd: backward", cohort.Internal, "the message is not known")
	}
	g := gradient{ts: make([]autograd.Value, len(pt.kind)), retain: retain}
	if some != nil {
		copy(g.ts, some.ts)
	}
	for i, v := range g.ts {
		if v.IsNone() {
			var err error
			if g.ts[i], err = pt.kind[i].ZerosLike(); err != nil {
				return nil, err
			}
		}
	}
	return &g, nil
}
