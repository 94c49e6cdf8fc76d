// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"

	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

// seam is the engine as its agent sees it. It is a type of its own so that programs do not see these methods.
type seam struct{ e *Engine }

var _ rpcext.Extension = seam{}

func (s seam) Attach(a rpcext.Agent) error { return s.e.attach(a) }

func (s seam) Wrappers() []rpcwire.Type { return []rpcwire.Type{rpcwire.ForwardAutogradReq} }

func (s seam) Unwrap(from rpcext.Worker, m *rpcwire.Message) (*rpcext.Wrapped, error) {
	return s.e.incoming(from, m)
}

func (s seam) Kinds() []rpcwire.Type {
	return []rpcwire.Type{rpcwire.BackwardAutogradReq, rpcwire.CleanupAutogradReq, rpcwire.RRefBackwardReq}
}

func (s seam) Serve(ctx context.Context, from rpcext.Worker, m *rpcwire.Message, answer func(*rpcwire.Message, error)) {
	s.e.dispatch(ctx, from, m, answer)
}

func (s seam) Counts() map[string]int {
	n := s.e.Stats()
	return map[string]int{"num_current_backward_passes": n.Passes, "num_autograd_contexts": n.Contexts}
}

func (s seam) Outgoing(ctx context.Context, to rpcext.Worker, fn string, m *rpcwire.Message) (*rpcext.Exchange, error) {
	return s.e.outgoing(ctx, to, fn, m)
}

func (s seam) Died(w rpcext.Worker) { s.e.died(w) }
