// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
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
//
// The zero value refers to nothing, and using it is an error.
type Ref[T any] struct {
	refMark //nolint:unused // encoders find references by it
	a       *Agent
	c       *rpcref.Hold
	cleanup runtime.Cleanup
}

type refMark = pyconv.ReferenceMark //nolint:unused // embedded by Ref

var _ pyconv.Reference = (*Ref[any])(nil)

// refHolder is any *Ref[T].
type refHolder interface {
	core() *rpcref.Hold
	Agent() *Agent
	assign(from refHolder) error
}

func (r *Ref[T]) core() *rpcref.Hold {
	if r == nil {
		return nil
	}
	return r.c
}

// coreOf returns the hold behind a reference of any type, or nil.
func coreOf(v any) *rpcref.Hold {
	if h, ok := v.(refHolder); ok {
		return h.core()
	}
	return nil
}

// wrapRef makes the typed reference of a hold, which is closed with it.
func wrapRef[T any](a *Agent, core *rpcref.Hold) *Ref[T] {
	r := &Ref[T]{a: a, c: core}
	r.watch()
	return r
}

// watch closes the hold when the reference becomes unreachable.
func (r *Ref[T]) watch() {
	r.cleanup = runtime.AddCleanup(r, (*rpcref.Hold).Collect, r.c)
}

// typeNameOf names a Go type as it travels with a reference; "" fits everything.
func typeNameOf[T any]() string { return rpcref.TypeName(reflect.TypeFor[T]()) }

// assignReference fills arguments and results of type *Ref[T] with the references that were received.
func assignReference(dst any, v pyconv.Reference) (bool, error) {
	to, ok := dst.(refHolder)
	if !ok {
		return false, nil
	}
	from, ok := v.(refHolder)
	if !ok || from.core() == nil {
		return false, cohort.Newf("rpc: assign", cohort.Mismatch, "a %T is not a reference", v)
	}
	return true, to.assign(from)
}

// assign makes r the reference that was received.
func (r *Ref[T]) assign(from refHolder) error {
	core := from.core()
	if want, got := typeNameOf[T](), core.TypeName(); want != "" && rpcref.IsGoType(got) && got != want {
		return cohort.Newf("rpc: assign", cohort.Mismatch, "a reference to %s where one to %s is expected",
			strings.TrimPrefix(got, rpcref.GoTypePrefix), strings.TrimPrefix(want, rpcref.GoTypePrefix))
	}
	if core.Assigned.Swap(true) { // a message names a reference once that is in it twice, but each is closed by itself
		twin, err := core.Dup()
		if err != nil {
			return err
		}
		core = twin
	} else if untyped, ok := from.(*Ref[any]); ok {
		untyped.cleanup.Stop()
	}
	r.a, r.c = from.Agent(), core
	r.watch()
	return nil
}

// NewRef makes a reference to a value of this worker, to be given to others. The value itself is what their handlers
// here see; a Fetch elsewhere copies it. It corresponds to torch.distributed.rpc.RRef(value).
func NewRef[T any](a *Agent, value T) (*Ref[T], error) { return newRef(a, value, typeNameOf[T]()) }

// NewScriptRef is [NewRef] with the TorchScript type that the reference has for PyTorch workers, such as
// "__torch__.module.Interface", where their TorchScript functions take it. It corresponds to
// torch.distributed.rpc.RRef(value, type_hint).
func NewScriptRef[T any](a *Agent, value T, scriptType string) (*Ref[T], error) {
	if !strings.HasPrefix(scriptType, scriptPrefix) {
		return nil, cohort.Newf("rpc: reference", cohort.InvalidArgument,
			"%q is not a TorchScript type: want __torch__.module.Interface", scriptType)
	}
	return newRef(a, value, scriptType)
}

func newRef[T any](a *Agent, value T, typeName string) (*Ref[T], error) {
	obj := a.refs.Own("NewRef")
	if obj == nil {
		return nil, rpcsession.ErrClosed("reference")
	}
	obj.Set(value, nil)
	return wrapRef[T](a, a.refs.HoldOwn(obj, typeName)), nil
}

// held returns the hold, or the error of a zero reference.
func (r *Ref[T]) held(op string) (*rpcref.Hold, error) {
	if c := r.core(); c != nil {
		return c, nil
	}
	return nil, cohort.New("rpc: "+op, cohort.InvalidArgument,
		"the reference refers to nothing: use one that NewRef, Remote or a call has returned")
}

// Fetch copies the value to here and returns it; at the owner it is the value itself. It waits until the object has been
// made. An error of the function that made it is the error of every Fetch. The owner takes no lock, and sends tensors straight from
// the object's memory: if the object changes meanwhile, call a method that returns a copy made under the object's own lock instead
// (see [CallMethod]). It corresponds to RRef.to_here.
func (r *Ref[T]) Fetch(ctx context.Context) (T, error) {
	c, err := r.held("fetch")
	if err != nil {
		return *new(T), err
	}
	v, err := r.a.fetch(ctx, c)
	runtime.KeepAlive(r)
	return convert[T]("fetch", v, err)
}

// LocalValue returns the value at its owner, without a copy; elsewhere it is an error. It waits until the object has been
// made. It corresponds to RRef.local_value.
func (r *Ref[T]) LocalValue(ctx context.Context) (T, error) {
	var zero T
	c, err := r.held("local value")
	if err != nil {
		return zero, err
	}
	if c.Object == nil {
		return zero, cohort.Newf("rpc: local value", cohort.InvalidArgument,
			"%v is held by %q, its object lives at %q: use Fetch, or call a function there", r, r.a.name, c.Handle.Owner)
	}
	if c.Closed.Load() {
		return zero, c.Failure("use", rrefcore.Closed)
	}
	v, err := r.a.ownValue(ctx, "local value", c.Object)
	runtime.KeepAlive(r)
	return convert[T]("local value", v, err)
}

// Owner returns the worker that has the object. It corresponds to RRef.owner.
func (r *Ref[T]) Owner() WorkerInfo {
	switch {
	case r.core() == nil:
		return WorkerInfo{ID: cohort.NoRank}
	case r.c.Object != nil:
		return r.a.Self()
	}
	return WorkerInfo{Name: r.c.Handle.Owner, ID: cohort.Rank(r.c.Handle.Wire.Owner)}
}

// IsOwner reports whether the object lives here. It corresponds to RRef.is_owner.
func (r *Ref[T]) IsOwner() bool { return r.core() != nil && r.c.Object != nil }

// ConfirmedByOwner reports whether the owner is known to have registered this reference. It corresponds to
// RRef.confirmed_by_owner.
func (r *Ref[T]) ConfirmedByOwner() bool { return r.core() != nil && r.c.Confirmed() }

// Confirmed waits until the owner has registered this reference, or returns why it cannot. It corresponds to waiting for
// RRef._get_future.
func (r *Ref[T]) Confirmed(ctx context.Context) error {
	c, err := r.held("confirm reference")
	if err != nil || c.Object != nil {
		return err
	}
	pl := rpcslots.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	defer runtime.KeepAlive(r)
	r.a.refs.RequestAnswerNow(c.Handle)
	failpoint.At("rpc.ref.confirmed")
	select {
	case <-c.Refs.Ready(c.Handle):
		return c.State()
	case <-ctx.Done():
		return cohort.FromContext(ctx, "rpc: confirm reference")
	}
}

// ID returns the object's id as PyTorch prints it.
func (r *Ref[T]) ID() string {
	if r.core() == nil {
		return ""
	}
	return r.c.Text()
}

// Agent returns the agent that the reference belongs to.
func (r *Ref[T]) Agent() *Agent { return r.a }

// Clone returns a second reference of this worker to the same object, which is closed separately.
func (r *Ref[T]) Clone() (*Ref[T], error) {
	c, err := r.held("clone reference")
	if err != nil {
		return nil, err
	}
	twin, err := c.Dup()
	runtime.KeepAlive(r)
	if err != nil {
		return nil, err
	}
	return wrapRef[T](r.a, twin), nil
}

// Close ends the reference: when it was the last one the owner frees the object. It is idempotent and does not wait.
func (r *Ref[T]) Close() error {
	if r == nil || r.c == nil {
		return nil
	}
	r.cleanup.Stop()
	r.c.Close()
	return nil
}

// String returns the reference as PyTorch prints it, with the ids that its debug output uses.
func (r *Ref[T]) String() string {
	switch {
	case r == nil || r.c == nil:
		return "RRef()"
	case r.c.Object != nil:
		return fmt.Sprintf("OwnerRRef(%s)", globalText(r.c.Object.ID))
	default:
		return fmt.Sprintf("UserRRef(RRefId = %s, ForkId = %s)", globalText(r.c.Handle.Wire.ID), globalText(r.c.Handle.Wire.Fork))
	}
}

func globalText(id rrefcore.ID) string {
	return fmt.Sprintf("GloballyUniqueId(created_on=%d, local_id=%d)", id.On, id.N)
}

// MarshalJSON refuses: a reference lives only as long as it is held, so it can be passed in calls but not stored.
func (r *Ref[T]) MarshalJSON() ([]byte, error) {
	return nil, cohort.New("rpc: reference", cohort.NotSupported,
		"a reference cannot be stored: pass it in a call, or store what Fetch returns")
}
