// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/rpc/py"
)

// The functions that PyTorch workers call at each other, by their Python names, and our own.
const (
	deviceInfos      = "torch.distributed.rpc.backend_registry._get_device_infos"
	updateMembership = "torch.distributed.rpc._utils._update_group_membership"
	typeOnOwner      = "torch.distributed.rpc.api._rref_typeof_on_owner"
	localInvoke      = "torch.distributed.rpc.rref_proxy._local_invoke"
	localInvokeAsync = "torch.distributed.rpc.rref_proxy._local_invoke_async_execution"
	debugInfo        = "cohort.rpc.debug_info"
	refsInfo         = "cohort.rpc.references"
	handlerNames     = "cohort.rpc.handlers"
	describeHandlers = "cohort.rpc.describe"
)

// internal returns the handler of one of PyTorch's own functions.
func (a *Agent) internal(name string) *handler {
	if len(name) < 7 || name[:6] != "torch." && name[:7] != "cohort." {
		return nil
	}
	var fn func(ctx context.Context, r *Request) (any, error)
	switch name {
	case rpcworld.FuncToLeader, rpcworld.FuncToFollowers, rpcworld.FuncGatherLost:
		fn = a.serveGather
	case deviceInfos:
		fn = func(context.Context, *Request) (any, error) { return py.Tuple{0, &py.Dict{}, []any{}}, nil }
	case updateMembership:
		fn = a.serveMembership
	case typeOnOwner:
		fn = a.serveTypeOf
	case localInvoke, localInvokeAsync:
		fn = a.serveMethod
	case debugInfo:
		fn = func(context.Context, *Request) (any, error) { return a.DebugInfo(), nil }
	case refsInfo:
		fn = func(context.Context, *Request) (any, error) { return a.References(), nil }
	case handlerNames:
		fn = func(context.Context, *Request) (any, error) { return a.cfg.registry.Names(), nil }
	case describeHandlers:
		fn = func(context.Context, *Request) (any, error) { return a.cfg.registry.Describe(), nil }
	default:
		return nil
	}
	return &handler{name: name, raw: fn}
}

func wrongArguments(r *Request) error {
	return &RemoteError{Kind: "TypeError", Message: r.Func + ": wrong arguments", Code: cohort.InvalidArgument}
}

// serveGather takes a message of an all-gather.
func (a *Agent) serveGather(_ context.Context, r *Request) (any, error) {
	late, err := a.world.ServeGather(members{a}, r.Func, r.From.Name, a.isGo(r.From.Name), r.Args)
	if late != nil {
		a.net.Background(func() { late(a.net.Context) })
	}
	if errors.Is(err, rpcworld.ErrArguments) {
		return nil, wrongArguments(r)
	}
	if refused, ok := errors.AsType[*rpcworld.RefusedError](err); ok {
		return nil, Raise(refused.Class, "%s", refused.Text)
	}
	return nil, err
}

// serveMembership takes the announcement that a worker of a dynamic world joins or leaves.
func (a *Agent) serveMembership(ctx context.Context, r *Request) (any, error) {
	if len(r.Args) != 4 {
		return nil, wrongArguments(r)
	}
	w, ok1 := r.Args[0].(rpcwire.WorkerInfo)
	join, ok2 := r.Args[3].(bool)
	if !ok1 || !ok2 {
		return nil, wrongArguments(r)
	}
	if w.Name == a.name {
		return nil, nil
	}
	if !join {
		a.left(w.Name, rrefcore.Worker(w.ID))
		return nil, nil
	}
	addr, entry, err := a.world.Published(ctx, w.Name)
	if err != nil {
		return nil, err
	}
	former, err := a.net.Peer(w.Name)
	if err == nil && former.Replaced(entry) { // it has died: it would have announced that it leaves
		a.left(w.Name, former.ID)
	}
	p := a.net.AddPeer(w.Name, rrefcore.Worker(w.ID), addr, entry)
	r.conn.Rebind(former, p)
	a.net.Admit(w.Name)
	a.world.Gathers.Comes(w.Name)
	return nil, nil
}

// ownObject returns the value of a reference to an own object.
func ownObject(ctx context.Context, r *Request, v any) (any, error) {
	core := coreOf(v)
	if core == nil {
		return nil, wrongArguments(r)
	}
	if core.Object == nil {
		return nil, &RemoteError{Kind: "RuntimeError", Message: "the reference belongs to another worker", Code: cohort.InvalidArgument}
	}
	return core.Object.Get(ctx)
}

// serveTypeOf returns to a PyTorch worker the class behind a reference: what its proxies look up methods in.
func (a *Agent) serveTypeOf(ctx context.Context, r *Request) (any, error) {
	if len(r.Args) < 1 {
		return nil, wrongArguments(r)
	}
	defer closeRef(r.Args[0])
	v, err := ownObject(ctx, r, r.Args[0])
	if err != nil {
		return nil, err
	}
	return a.cfg.registry.classOf(v)
}

// serveMethod calls a method of an own object.
func (a *Agent) serveMethod(ctx context.Context, r *Request) (any, error) {
	if len(r.Args) != 4 {
		return nil, wrongArguments(r)
	}
	if !pyconv.Contains(r.Args[2:], r.Args[0]) { // the method owns what is among its arguments
		defer closeRef(r.Args[0])
	}
	name, ok1 := r.Args[1].(string)
	var args []any
	err := Assign(&args, r.Args[2])
	kwargs, ok2 := r.Args[3].(*py.Dict)
	if !ok1 || !ok2 || err != nil {
		return nil, wrongArguments(r)
	}
	v, err := ownObject(ctx, r, r.Args[0])
	if err != nil {
		return nil, err
	}
	h, err := a.cfg.registry.method(v, name)
	if err != nil {
		return nil, err
	}
	promise := cohort.NewPromise[any]()
	h.call(ctx, &Request{From: r.From, Func: h.name, Args: args, Kwargs: kwargs}, func(v any, err error) { promise.Complete(v, err) })
	out := promise.Future()
	if out.Completed() {
		return out.Await(ctx)
	}
	return out, nil
}

func closeRef(v any) {
	if core := coreOf(v); core != nil {
		core.Close()
	}
}
