// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// fetch copies the value of a reference's object to here.
func (a *Agent) fetch(ctx context.Context, core *rpcref.Hold) (any, error) {
	if core.Object != nil && !core.Closed.Load() {
		return a.ownValue(ctx, "fetch", core.Object)
	}
	if err := a.caller.Active.Enter(ctx); err != nil { // from here on a shutdown delays the release of the reference
		return nil, err
	}
	defer a.caller.Active.Leave()
	if err := core.Usable("fetch"); err != nil {
		return nil, err
	}
	h := core.Handle
	p := a.net.PeerByID(h.Wire.Owner)
	if p == nil {
		return nil, core.Failure("fetch", rrefcore.OwnerLost)
	}
	o := &rpcclient.Outgoing{By: a.caller, Op: "fetch", Func: h.Wire.ID.String(), Peer: p}
	o.Repeat = func() bool { return core.Usable("fetch") == nil }
	o.Build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		kind := rpcwire.PythonRRefFetchCall
		if core.Script {
			kind = rpcwire.ScriptRRefFetchCall
		}
		if toGo {
			return &rpcwire.Message{Type: kind, Payload: rpcref.AppendID(make([]byte, 0, 24), h.Wire.ID, 0, 0)}, nil, rpcref.FlagExact, nil
		}
		payload, err := rpcwire.Fetch{RRef: rpcref.Global(h.Wire.ID), From: rpcwire.WorkerID(h.Wire.Owner)}.Encode()
		return &rpcwire.Message{Type: kind, Payload: payload}, nil, 0, err
	}
	due := a.caller.Deadline(ctx)
	if !a.refs.Known(h) {
		bounded, cancel := rpcclient.Until(ctx, due)
		err := a.refs.Settled(bounded, core)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	started := a.caller.Begin(ctx, o)
	x, err := a.caller.ExchangeActive(ctx, o)
	a.caller.End(o, started, err)
	if err != nil {
		return nil, fetchFailure(ctx, due, core, err)
	}
	a.awaitEarly(ctx, x)
	d := a.refs.Decoding(p, x.Frame, x.Msg.Tensors)
	var v any
	switch x.Msg.Type {
	case rpcwire.PythonRRefFetchRet:
		v, err = d.PythonFetchRet(x.Msg.Payload)
	case rpcwire.ScriptRRefFetchRet:
		v, err = d.ScriptFetchRet(x.Msg.Payload)
	default:
		err = rpcclient.UnexpectedAnswer(o.Func, p, x.Msg)
	}
	if err != nil {
		d.Abandon(x.Msg)
		return nil, err
	}
	if remote, ok := v.(*rpcwire.RemoteException); ok {
		return nil, fetchFailure(ctx, due, core, rpcclient.Named("rpc: fetch", o.Func, p, restoreReason(raised(p.Name, remote))))
	}
	return v, nil
}

// fetchFailure is the error of a fetch that has failed with err. If the reference has failed meanwhile, that is why. If a Go owner
// answers that the object is gone while its creation is under way here, the creation has been given up, and its error is about to be set.
func fetchFailure(ctx context.Context, due time.Time, core *rpcref.Hold, err error) error {
	if errors.Is(err, ErrGone) {
		bounded, cancel := rpcclient.Until(ctx, due)
		defer cancel()
		pl := rpcslots.Of(ctx)
		pl.Pause()
		defer pl.Resume()
		failpoint.At("rpc.fetch.ready")
		select {
		case <-core.Refs.Ready(core.Handle):
		case <-bounded.Done():
			return cohort.FromContext(bounded, "rpc: fetch")
		}
	}
	if failed := core.State(); failed != nil {
		return failed
	}
	return err
}

// ownValue is the value of an own object. Its error is what its function returned, as that of a call.
func (a *Agent) ownValue(ctx context.Context, op string, o *rpcref.Object) (any, error) {
	v, err := o.Get(ctx)
	if err != nil {
		if _, named := err.(*cohort.Error); !named { //nolint:errorlint // only the outermost
			e := rpcclient.Named("rpc: "+op, o.ID.String(), a.self, err)
			if cohort.CodeOf(err) == cohort.Unknown {
				e.Code = cohort.Remote // as another worker sees it
			}
			return nil, e
		}
		return nil, err
	}
	return v, nil
}
