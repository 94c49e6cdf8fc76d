// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/tensor"
)

// request is one request of a peer on its way to its one answer.
type request struct {
	rpcsession.Incoming
	s        *Server
	local    func(*rpcwire.Message, error)
	wraps    []wrapper                             // profilers and an extension around the call, outermost first
	values   func(context.Context) context.Context // of an extension and a profiler, for the handler
	answered atomic.Bool
	awaited  atomic.Bool    // counted in Server.awaited
	borrowed bool           // its tensors are not needed once the answer has been written
	own      *rpcref.Object // of a remote call of this worker to itself: where the result goes
	uncount  func()         // of such a call: it is active no longer
	*execution
}

// execution is the part of a request that runs something. A fetch has none.
type execution struct {
	began   time.Time   // when it was run
	ended   atomic.Bool // its function has a result
	decoder rpcref.Decoding
	slot    rpcslots.Slot
	ctx     rpcslots.Context
	job     job
}

// newRequest returns the request that has arrived.
func (s *Server) newRequest(in *rpcsession.Incoming) *request {
	if in.Kind == rpcwire.PythonRRefFetchCall || in.Kind == rpcwire.ScriptRRefFetchCall {
		return &request{Incoming: *in, s: s}
	}
	room := &struct {
		request
		execution execution
	}{request: request{Incoming: *in, s: s}}
	room.request.execution = &room.execution
	return &room.request
}

// Caller is the unit that shares slots: a worker, or all clients together.
func (r *request) Caller() any {
	if r.Peer == nil || r.Peer.ID < 0 {
		return nil
	}
	return r.Peer
}

// wrapper turns an answer into the form that a wrapped request expects.
type wrapper func(m *rpcwire.Message) error

func (r *request) goPeer() bool { return r.Conn == nil || r.Conn.Cohort() }

// creates reports whether the result stays here, as an object.
func (r *request) creates() bool { return creates(r.Kind) }

// creates reports whether a message of this type is a creating call.
func creates(t rpcwire.Type) bool {
	return t == rpcwire.PythonRemoteCall || t == rpcwire.ScriptRemoteCall
}

// answer sends the one answer. It reports false when there has been one.
func (r *request) answer(m *rpcwire.Message, wires []rrefcore.Wire) bool {
	if !r.answered.CompareAndSwap(false, true) {
		return false
	}
	r.send(m, wires)
	r.unawaited()
	return true
}

// unawaited notes that no caller waits for an answer any more: it has it, or has given up.
func (r *request) unawaited() {
	if r.awaited.CompareAndSwap(true, false) {
		r.s.awaited.Add(-1)
	}
}

// canceledByCaller ends the handler's context: its caller has given up, or the connection has ended.
func (r *request) canceledByCaller(cause error) {
	r.unawaited()
	r.ctx.Cancel(cause)
}

// send sends the answer.
func (r *request) send(m *rpcwire.Message, wires []rrefcore.Wire) {
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
	c := r.Conn
	c.Untrack(r.ID)
	m.ID = int64(r.ID) //nolint:gosec // echoed as it came
	if r.borrowed {
		m.Written = r.releaseArguments
	}
	if len(wires) > 0 && c.Cohort() {
		c.Carry(wires)
	}
	ctx := r.s.cfg.Net.Context
	if ctx.Err() != nil { // Close ends everything at once: no answer is better than half of one
		return
	}
	_, err := c.Write(ctx, m, rpcref.HeaderForks(wires), 0, time.Time{})
	if err != nil && c.Alive() && ctx.Err() == nil && !errors.Is(err, cohort.PeerLost) {
		// It could not be encoded or is too large: the caller must still get an answer.
		r.s.cfg.Refs.Undecoded(c.Peer(), wires)
		r.s.cfg.Logger.Warn("answer could not be sent", slog.String("peer", c.Peer().Name), slog.String("type", m.Type.String()),
			slog.String("err", err.Error()))
		fail := r.failure(err)
		fail.ID = m.ID
		_, _ = c.Write(ctx, fail, nil, 0, time.Time{})
	}
}

// recordDuration notes how long the function ran.
func (r *request) recordDuration(started time.Time) {
	if r.Conn != nil && r.Conn.Inline != nil {
		r.Conn.Inline.RecordDuration(time.Since(started))
	}
}

// releaseArguments gives the memory of the arguments back.
func (r *request) releaseArguments() {
	for _, t := range r.Tensors {
		if t, ok := t.(*tensor.Tensor); ok {
			t.Storage().Release()
		}
	}
}

// failure is the answer for an error outside the user's function, and for every error of a TorchScript call: an
// EXCEPTION with PyTorch's text, or with all details for a Go caller.
func (r *request) failure(err error) *rpcwire.Message {
	s := r.s
	class := rpcwire.ErrorUnknown
	// PyTorch settles a creation that fails only if its time is over
	if cohort.CodeOf(err) == cohort.DeadlineExceeded || r.creates() && !r.goPeer() {
		class = rpcwire.ErrorTimeout
	}
	text := fmt.Sprintf("Error on Node %d: %s", s.cfg.ID, err.Error())
	if r.goPeer() && class == rpcwire.ErrorUnknown {
		text = rpcwire.ErrorLine(s.cfg.Program.Exception(err, true))
	}
	return &rpcwire.Message{Type: rpcwire.Exception, Payload: rpcwire.EncodeException(class, text)}
}

// refuse answers with a failure. It never blocks the reader.
func (r *request) refuse(err error) {
	m := r.failure(err)
	if r.Conn == nil {
		r.s.cfg.Net.Background(func() { r.answer(m, nil) })
		return
	}
	r.Conn.Refusals.Add(r.Conn, func() { r.answer(m, nil) })
}

// track makes a request cancellable: by its caller, or when the session ends.
func (r *request) track(cancel context.CancelCauseFunc) {
	if r.Conn != nil {
		r.Conn.Track(r.ID, cancel)
	}
}

// answerForm is how a value is answered to a kind of request.
type answerForm struct {
	kind   rpcwire.Type
	encode func(*rpcwire.Encoder, any) ([]byte, error)
	script bool // an error is not a value there
}

var (
	callForm        = &answerForm{kind: rpcwire.PythonRet, encode: (*rpcwire.Encoder).PythonRet}
	fetchForm       = &answerForm{kind: rpcwire.PythonRRefFetchRet, encode: (*rpcwire.Encoder).PythonFetchRet}
	scriptCallForm  = &answerForm{kind: rpcwire.ScriptRet, encode: (*rpcwire.Encoder).ScriptRet, script: true}
	scriptFetchForm = &answerForm{kind: rpcwire.ScriptRRefFetchRet, encode: (*rpcwire.Encoder).ScriptFetchRet, script: true}
)

// form is how the result of a call is answered.
func (j *job) form() *answerForm {
	if j.script {
		return scriptCallForm
	}
	return callForm
}

// answerValue answers a request with a value, or with the error that stands for it, which a Python caller raises.
func (s *Server) answerValue(req *request, form *answerForm, v any, err error) {
	toGo := req.goPeer()
	if err != nil && !form.script {
		v, err = s.cfg.Program.Exception(err, toGo), nil
	}
	for first := true; err == nil; first = false {
		e, wires := s.cfg.Refs.Encoder(req.Peer, toGo)
		var payload []byte
		if payload, err = form.encode(e, v); err == nil {
			s.cfg.Refs.FlushNow(req.Peer, *wires)
			req.answer(e.Message(form.kind, payload), *wires)
			return
		}
		s.cfg.Refs.Undecoded(req.Peer, *wires) // nothing of it was sent
		if first && !form.script {             // the value has no Python form
			v, err = s.cfg.Program.Exception(err, toGo), nil
		}
	}
	req.answer(req.failure(err), nil)
}

// answerError answers a request that could not be understood.
func (s *Server) answerError(r *request, err error) {
	if r.Kind == rpcwire.PythonCall {
		s.answerValue(r, callForm, nil, err)
		return
	}
	r.answer(r.failure(err), nil)
}
