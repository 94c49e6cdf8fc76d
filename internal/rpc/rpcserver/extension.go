// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

// Extension is a worker's extension with the message types that it has declared.
type Extension struct {
	rpcext.Extension
	wrappers, kinds map[rpcwire.Type]bool
}

// Attach introduces an extension to its agent.
func Attach(x rpcext.Extension, to rpcext.Agent) (*Extension, error) {
	if err := x.Attach(to); err != nil {
		return nil, err
	}
	set := func(types []rpcwire.Type) map[rpcwire.Type]bool {
		m := map[rpcwire.Type]bool{}
		for _, t := range types {
			m[t] = true
		}
		return m
	}
	return &Extension{Extension: x, wrappers: set(x.Wrappers()), kinds: set(x.Kinds())}, nil
}

// ExtensionWorker is a worker as extensions know it.
func ExtensionWorker(p *rpcsession.Peer) rpcext.Worker {
	return rpcext.Worker{Name: p.Name, ID: int(p.ID), Go: p.SpeaksCohort()}
}

// unwrapped takes a wrapped request apart and dispatches what is inside.
func (s *Server) unwrapped(r *request) {
	w, err := s.cfg.Extension.Unwrap(ExtensionWorker(r.Peer), r.message())
	if err != nil {
		if a, inner, bad := rpcwire.UnwrapAutograd(r.Payload); bad == nil && r.Kind == rpcwire.ForwardAutogradReq {
			r.Kind, r.Payload = a.Inner, inner // a creation is refused in its own way
		}
		s.reject(r, err)
		return
	}
	if w.Answer != nil {
		r.wraps = append(r.wraps, w.Answer)
	}
	if w.Context != nil {
		r.derive(w.Context)
	}
	r.Tensors = w.Message.Tensors
	s.unwrap(r, w.Message.Type, w.Message.Payload)
}

// message is the request as a message.
func (r *request) message() *rpcwire.Message {
	return &rpcwire.Message{Type: r.Kind, ID: int64(r.ID), Payload: r.Payload, Tensors: r.Tensors} //nolint:gosec // echoed as it came
}

// serveKind runs a request that the extension answers, in the slot of a handler.
func (s *Server) serveKind(ctx context.Context, r *request, end func()) {
	answer := func(m *rpcwire.Message, err error) {
		if err == nil && m == nil {
			err = cohort.New("rpc: request", cohort.Internal, "the extension has no answer")
		}
		if err != nil {
			m = r.failure(err)
		}
		if r.answer(m, nil) {
			end()
		}
	}
	returned := false
	defer func() {
		if !returned {
			s.recovered(r.Kind.String(), recover(), func(_ any, err error) { answer(nil, err) })
		}
	}()
	s.cfg.Extension.Serve(ctx, ExtensionWorker(r.Peer), r.message(), answer)
	returned = true
	if !r.answered.Load() {
		r.slot.Return()
	}
}

// serveProfiled serves the request inside a RUN_WITH_PROFILING_REQ and answers with what was recorded meanwhile.
func (s *Server) serveProfiled(r *request) {
	x, inner, err := rpcwire.UnwrapProfiling(r.Payload)
	if err != nil {
		r.refuse(err)
		return
	}
	rec := &rpcwire.ProfileRecorder{}
	r.derive(func(ctx context.Context) context.Context { return rpcwire.WithProfile(ctx, rec) })
	r.wraps = append(r.wraps, func(m *rpcwire.Message) error {
		x.Inner, x.Config = m.Type, nil
		if r.execution != nil && !r.began.IsZero() && !r.creates() { // a creating call is answered before its function has returned
			rec.Add(rpcwire.Span{
				Name:   rpcwire.ProfileName(s.cfg.Program.Shown(r.job.Func, r.job.Args)),
				Worker: cohort.Rank(s.cfg.ID), Start: r.began, Took: time.Since(r.began),
			})
		}
		x.Spans, _ = rec.Spans()
		payload, err := x.WrapResponse(m.Payload)
		m.Type, m.Payload = rpcwire.RunWithProfilingResp, payload
		return err
	})
	s.unwrap(r, x.Inner, inner)
}

// derive adds to the context of the handler.
func (r *request) derive(with func(context.Context) context.Context) {
	if before := r.values; before != nil {
		r.values = func(ctx context.Context) context.Context { return with(before(ctx)) }
		return
	}
	r.values = with
}
