// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/tensor"
)

// request is one request of a peer on its way to its one answer.
type request struct {
	conn     *conn // nil for a call of this worker to itself
	local    func(*rpcwire.Message, error)
	peer     *peer
	id       uint64
	kind     rpcwire.Type
	payload  []byte
	tensors  []any
	frame    *cohortwire.Frame
	flags    uint8
	deadline time.Time
	wraps    []wrapper                             // profilers and an extension around the call, outermost first
	values   func(context.Context) context.Context // of an extension, for the handler
	answered atomic.Bool
	decoder  *decoding
	inline   bool // may run in the goroutine that reads
	place    rpcplace.Place
	ctx      rpcplace.Context
	job      job
	borrowed bool    // its tensors are not needed once the answer has been written
	own      *object // of a remote call of this worker to itself: where the result goes
	uncount  func()  // of such a call: it is active no longer
}

// Caller is who shares places: a worker, or all guests together.
func (r *request) Caller() any {
	if r.peer == nil || r.peer.worker < 0 {
		return nil
	}
	return r.peer
}

// wrapper turns an answer into the form that a wrapped request expects.
type wrapper func(m *rpcwire.Message) error

func (r *request) cohort() bool { return r.conn == nil || r.conn.cohort() }

// creates reports whether the result stays here, as an object.
func (r *request) creates() bool { return creates(r.kind) }

// creates reports whether a message of this type is a creating call.
func creates(t rpcwire.Type) bool {
	return t == rpcwire.PythonRemoteCall || t == rpcwire.ScriptRemoteCall
}

// answer sends the one answer.
func (r *request) answer(m *rpcwire.Message, wires []rrefcore.Wire) {
	if !r.answered.CompareAndSwap(false, true) {
		return
	}
	for _, wrap := range slices.Backward(r.wraps) {
		if m.Type == rpcwire.Exception {
			break
		}
		if err := wrap(m); err != nil {
			m = r.failure(err)
		}
	}
	if r.local != nil {
		r.local(m, nil)
		return
	}
	c := r.conn
	c.mu.Lock()
	delete(c.serving, r.id)
	c.mu.Unlock()
	m.ID = int64(r.id) //nolint:gosec // echoed as it came
	if r.borrowed {
		m.Written = r.giveBack
	}
	if len(wires) > 0 && c.cohort() {
		c.carry(wires)
	}
	ctx := c.agent.ctx
	if ctx.Err() != nil { // Close ends everything at once: no answer is better than half of one
		return
	}
	_, err := c.write(ctx, m, headerForks(wires), 0, time.Time{})
	if err != nil && c.alive() && ctx.Err() == nil && !errors.Is(err, dist.PeerLost) {
		// It could not be encoded or is too large: the caller must still hear something.
		c.agent.refs.undelivered(c.peer(), wires)
		c.agent.cfg.logger.Warn("answer could not be sent", slog.String("peer", c.peer().name), slog.String("type", m.Type.String()), slog.String("err", err.Error()))
		fail := r.failure(err)
		fail.ID = m.ID
		_, _ = c.write(ctx, fail, nil, 0, time.Time{})
	}
}

// took notes how long the function ran.
func (r *request) took(started time.Time) {
	if r.conn != nil && r.conn.inline != nil {
		r.conn.inline.Took(time.Since(started))
	}
}

// giveBack gives the memory of the arguments back.
func (r *request) giveBack() {
	for _, t := range r.tensors {
		if t, ok := t.(*tensor.Tensor); ok {
			t.Storage().Release()
		}
	}
}

// failure is the answer for an error outside the user's function, and for every error of a TorchScript call: an
// EXCEPTION with PyTorch's text, or with all that a Go caller wants to know.
func (r *request) failure(err error) *rpcwire.Message {
	a := r.agent()
	class := rpcwire.ErrorUnknown
	if dist.CodeOf(err) == dist.DeadlineExceeded {
		class = rpcwire.ErrorTimeout
	}
	text := fmt.Sprintf("Error on Node %d: %s", a.id, err.Error())
	if r.cohort() && class == rpcwire.ErrorUnknown {
		text = a.goException(err).encode()
	}
	return &rpcwire.Message{Type: rpcwire.Exception, Payload: rpcwire.EncodeException(class, text)}
}

// refuse answers with a failure. It never blocks the reader.
func (r *request) refuse(err error) {
	m := r.failure(err)
	if r.conn == nil {
		r.agent().background(func() { r.answer(m, nil) })
		return
	}
	r.conn.refusals.add(r.conn, func() { r.answer(m, nil) })
}

func (r *request) agent() *Agent {
	if r.conn != nil {
		return r.conn.agent
	}
	return r.peer.agent
}

// errGivenUp is the cause of a handler's context when its caller waits no longer.
var errGivenUp = dist.New("rpc: request", dist.Canceled, "the caller has given up")

// track makes a request cancellable: by its caller, or when the session ends.
func (r *request) track(cancel context.CancelCauseFunc) {
	c := r.conn
	if c == nil {
		return
	}
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		cancel(err)
		return
	}
	c.serving[r.id] = cancel
	c.mu.Unlock()
}
