// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// Ref is a reference to an object of type T that lives at one worker, the owner. It corresponds to
// torch.distributed.rpc.RRef.
//
// A Ref may be put into arguments and results: the receiver gets a reference of its own, and the object lives until all
// are closed. [Ref.Close] ends this one; one that was forgotten is closed when the garbage collector finds it. All methods
// are safe for concurrent use.
//
// A handler owns the references among its arguments. One in its result must be open when the handler returns; to close it
// when the caller has its own, use context.AfterFunc: the handler's context ends after the result was sent.
type Ref[T any] struct {
	c       *refCore
	cleanup runtime.Cleanup
}

// refCore is one hold on an object, without its Go type.
type refCore struct {
	a        *Agent
	obj      *object // of an own object
	h        *handle // of another worker's
	typeName string
	script   bool // a TorchScript value of a PyTorch owner
	assigned atomic.Bool
	closed   atomic.Bool
}

// refHolder is what encoders find references by.
type refHolder interface{ core() *refCore }

var _ rpcwire.Reference = (*Ref[any])(nil)

// IsReference marks a Ref for the encoder of values.
func (r *Ref[T]) IsReference() {}

func (r *Ref[T]) core() *refCore {
	if r == nil {
		return nil
	}
	return r.c
}

// wrapRef makes the typed reference of a hold, which is closed with it.
func wrapRef[T any](core *refCore) *Ref[T] {
	r := &Ref[T]{c: core}
	r.watch()
	return r
}

// watch closes the hold when the reference becomes unreachable.
func (r *Ref[T]) watch() {
	r.cleanup = runtime.AddCleanup(r, func(core *refCore) {
		if !core.closed.Load() {
			core.a.refs.leaked.collected.Add(1)
			core.close()
		}
	}, r.c)
}

const goTypePrefix = "go:"

func isGoType(name string) bool { return strings.HasPrefix(name, goTypePrefix) }

// typeNameOf names a Go type as it travels with a reference; "" fits everything.
func typeNameOf[T any]() string {
	t := reflect.TypeFor[T]()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Interface {
		return ""
	}
	if t.PkgPath() != "" && t.Name() != "" {
		return goTypePrefix + t.PkgPath() + "." + t.Name()
	}
	return goTypePrefix + t.String()
}

// AssignReference makes r the reference that was received. It is how arguments and results of type *Ref[T] are filled;
// programs do not call it.
func (r *Ref[T]) AssignReference(v any) error {
	from, ok := v.(refHolder)
	if !ok || from.core() == nil {
		return dist.Newf("rpc: assign", dist.Mismatch, "a %T is not a reference", v)
	}
	core := from.core()
	if want := typeNameOf[T](); want != "" && isGoType(core.typeName) && core.typeName != want {
		return dist.Newf("rpc: assign", dist.Mismatch, "a reference to %s where one to %s is expected",
			strings.TrimPrefix(core.typeName, goTypePrefix), strings.TrimPrefix(want, goTypePrefix))
	}
	if core.assigned.Swap(true) { // a message names a reference once that is in it twice, but each is closed by itself
		twin, err := core.dup()
		if err != nil {
			return err
		}
		core = twin
	} else if untyped, ok := v.(*Ref[any]); ok {
		untyped.cleanup.Stop()
	}
	r.c = core
	r.watch()
	return nil
}

// NewRef makes a reference to a value of this worker, to be given to others. The value itself is what their handlers
// here see; a Fetch elsewhere copies it. It corresponds to torch.distributed.rpc.RRef(value).
func NewRef[T any](a *Agent, value T) (*Ref[T], error) {
	if a.refs == nil || a.cfg.guest {
		return nil, dist.New("rpc: reference", dist.NotSupported, "a guest owns no objects")
	}
	r := a.refs
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, rpclink.ErrClosed("reference")
	}
	o := r.object(r.m.Own())
	o.where = "NewRef"
	r.mu.Unlock()
	o.set(value, nil)
	return wrapRef[T](&refCore{a: a, obj: o, typeName: typeNameOf[T]()}), nil
}

// Fetch copies the value to here and returns it; at the owner it is the value itself. It waits until the object has been
// made. An error of the function that made it is the error of every Fetch. It corresponds to RRef.to_here.
func (r *Ref[T]) Fetch(ctx context.Context) (T, error) {
	v, err := r.c.a.refs.fetch(ctx, r.c)
	runtime.KeepAlive(r)
	return convert[T]("fetch", v, err)
}

// LocalValue returns the value at its owner, without a copy; elsewhere it is an error. It waits until the object has been
// made. It corresponds to RRef.local_value.
func (r *Ref[T]) LocalValue(ctx context.Context) (T, error) {
	var zero T
	c := r.c
	if c.obj == nil {
		return zero, dist.Newf("rpc: local value", dist.InvalidArgument,
			"%v is held by %q, its object lives at %q: use Fetch, or call a function there", r, c.a.name, c.h.owner)
	}
	if c.closed.Load() {
		return zero, c.failure("use", rrefcore.Closed)
	}
	v, err := c.obj.get(ctx)
	runtime.KeepAlive(r)
	return convert[T]("local value", v, err)
}

// Owner returns the worker that has the object. It corresponds to RRef.owner.
func (r *Ref[T]) Owner() WorkerInfo {
	if r.c.obj != nil {
		return r.c.a.Self()
	}
	return WorkerInfo{Name: r.c.h.owner, ID: int(r.c.h.wire.Owner)}
}

// IsOwner reports whether the object lives here. It corresponds to RRef.is_owner.
func (r *Ref[T]) IsOwner() bool { return r.c.obj != nil }

// ConfirmedByOwner reports whether the owner is known to have registered this reference. It corresponds to
// RRef.confirmed_by_owner.
func (r *Ref[T]) ConfirmedByOwner() bool {
	if r.c.obj != nil {
		return true
	}
	refs := r.c.a.refs
	refs.mu.Lock()
	defer refs.mu.Unlock()
	return r.c.h.settled && r.c.h.err == nil
}

// Confirmed waits until the owner has registered this reference, or says why it cannot. It corresponds to waiting for
// RRef._get_future.
func (r *Ref[T]) Confirmed(ctx context.Context) error {
	if r.c.obj != nil {
		return nil
	}
	pl := rpcplace.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	r.c.a.net.Recall(r.c.h.wire.Owner)
	select {
	case <-r.c.h.ready:
		return r.c.state()
	case <-ctx.Done():
		return dist.FromContext("rpc: confirm reference", ctx)
	}
}

// ID returns the object's id as PyTorch prints it.
func (r *Ref[T]) ID() string {
	if r.c.obj != nil {
		return r.c.obj.id.String()
	}
	return r.c.h.wire.ID.String()
}

// Agent returns the agent that the reference belongs to.
func (r *Ref[T]) Agent() *Agent { return r.c.a }

// Clone returns a second reference of this worker to the same object, to be closed by itself.
func (r *Ref[T]) Clone() (*Ref[T], error) {
	twin, err := r.c.dup()
	if err != nil {
		return nil, err
	}
	return wrapRef[T](twin), nil
}

// Close ends the reference: when it was the last one the owner frees the object. It is idempotent and does not wait.
func (r *Ref[T]) Close() error {
	if r == nil || r.c == nil {
		return nil
	}
	r.cleanup.Stop()
	r.c.close()
	return nil
}

// failure is the error of a reference that cannot be used.
func (c *refCore) failure(op string, code rrefcore.Code) error {
	c.a.refs.mu.Lock()
	defer c.a.refs.mu.Unlock()
	return c.failureLocked(op, code)
}

func (c *refCore) failureLocked(op string, code rrefcore.Code) error {
	if c.obj != nil {
		return refFailure(op, c.obj.id, c.a.name, code, nil)
	}
	return refFailure(op, c.h.wire.ID, c.h.owner, code, c.h.cause)
}

// state returns why the reference cannot be used, or nil.
func (c *refCore) state() error {
	if c.obj != nil {
		return nil
	}
	c.a.refs.mu.Lock()
	defer c.a.refs.mu.Unlock()
	return c.h.err
}

// dup returns a second hold.
func (c *refCore) dup() (*refCore, error) {
	if c.closed.Load() {
		return nil, c.failure("share", rrefcore.Closed)
	}
	r := c.a.refs
	r.mu.Lock()
	defer r.mu.Unlock()
	twin := &refCore{a: c.a, obj: c.obj, h: c.h, typeName: c.typeName, script: c.script}
	if c.obj != nil {
		if !r.m.HoldLocal(c.obj.id) {
			return nil, c.failureLocked("share", rrefcore.Gone)
		}
		return twin, nil
	}
	if c.h.holders == 0 {
		return nil, c.failureLocked("share", rrefcore.Closed)
	}
	c.h.holders++
	return twin, nil
}

// close ends the hold, once.
func (c *refCore) close() {
	if !c.closed.CompareAndSwap(false, true) {
		return
	}
	r := c.a.refs
	r.stepLazy(func(m *rrefcore.Machine) {
		if c.obj != nil {
			m.ReleaseLocal(c.obj.id)
			return
		}
		c.h.holders--
		if c.h.holders == 0 {
			m.Drop(c.h.wire.Fork)
			delete(r.handles, c.h.wire.Fork)
		}
	})
}

// leakCount counts references that were forgotten.
type leakCount struct{ collected atomic.Int64 }
