// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

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
			rec.Add(rpcwire.Span{Name: rpcwire.ProfileName(s.cfg.Program.Shown(r.job.Func, r.job.Args)), Worker: cohort.Rank(s.cfg.ID), Start: r.began, Took: time.Since(r.began)})
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
