// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
)

// callSelf runs a function of this worker as if it had come over a wire: values are copied. The caller has counted the call
// as active.
func (a *Agent) callSelf(ctx context.Context, o *rpcclient.Outgoing) (any, error) {
	started := a.caller.Begin(ctx, o)
	x, err := a.server.ExchangeOwn(ctx, o)
	var v any
	if err == nil {
		v, err = a.result(o.Func, a.self, x)
	}
	if err != nil && a.net.Context.Err() != nil {
		err = rpcsession.ErrClosed(o.Op) // the end of the agent has ended the handler, whatever error that returned
	}
	a.caller.End(o, started, err)
	return v, err
}
