// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"reflect"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// FlagExact marks a fetch among Go workers: its payload is the object's id with the epoch, which PyTorch's form lacks.
const FlagExact = 1

// Fetched reads the id of a fetch: exact is the form among Go workers, an id with the epoch, which PyTorch's form lacks.
func (r *Refs) Fetched(payload []byte, exact bool) (id rrefcore.ID, err error) {
	if !exact {
		f, bad := rpcwire.DecodeFetch(payload)
		return r.id(f.RRef), bad
	}
	rest, err := parseID(payload, &id, 0, 0)
	if err == nil && len(rest) > 0 {
		err = badControl("%d bytes behind the id of a fetch", len(rest))
	}
	return id, err
}

// FetchArrived returns the place of an object that a worker wants to copy.
func (r *Refs) FetchArrived(by rrefcore.Worker, id rrefcore.ID) (*Object, error) {
	failpoint.At("rpc.refs.fetch")
	r.mu.Lock()
	r.known(by)
	r.known(id.On)
	var o *Object
	code := rrefcore.Gone // for a worker without a reference to it
	if r.mu.m.MayUse(by, id) {
		if code = r.mu.m.FetchArrived(id); code == rrefcore.OK {
			o = r.object(id)
		}
	}
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
	if o == nil {
		return nil, r.cfg.Failure("fetch", id, r.cfg.Name, code, nil)
	}
	return o, nil
}

// Known reports whether the owner of a reference may be asked for the value: it answers only those who hold one.
func (r *Refs) Known(h *Handle) bool {
	if h.Wire.ID.On == r.cfg.ID { // made here: the owner knows its creator
		return true
	}
	return r.settled(h)
}

func (r *Refs) settled(h *Handle) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return h.Settled
}

// Settled waits until the owner knows of a received reference.
func (r *Refs) Settled(ctx context.Context, core *Hold) error {
	h := core.Handle
	pl := rpcslots.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	failpoint.At("rpc.refs.settled")
	select {
	case <-r.Ready(h):
		return core.State()
	case <-ctx.Done():
		return cohort.FromContext(ctx, "rpc: fetch")
	case <-r.cfg.Net.Context.Done():
		return rpcsession.ErrClosed("fetch")
	}
}

// Counts returns the sizes of the machine's tables.
func (r *Refs) Counts() rrefcore.Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.m.Counts()
}

// Find returns an own object, or nil.
func (r *Refs) Find(g rpcwire.GlobalID) (rrefcore.ID, *Object) {
	id := r.id(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	return id, r.mu.objects[id]
}

// State is everything that is known about references at a moment.
type state struct {
	Objects []rrefcore.ObjectInfo
	Handles []rrefcore.HandleInfo
	Values  map[rrefcore.ID]*Object
	Where   map[rrefcore.ID]string // what created an object or a fork
}

// State returns all that is known.
func (r *Refs) State() state {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := state{Objects: r.mu.m.Objects(), Handles: r.mu.m.Handles(), Values: map[rrefcore.ID]*Object{}, Where: map[rrefcore.ID]string{}}
	for id, o := range r.mu.objects {
		s.Values[id] = o
		s.Where[id] = o.where
		if o.by != "" {
			s.Where[id] += " for " + o.by
		}
	}
	for fork, h := range r.mu.handles {
		s.Where[fork] = h.where
	}
	return s
}

// referencesIn finds the references that a value shows: it is one, or a slice or struct with some, in exported fields.
func (r *Refs) referencesIn(value any) []*Hold {
	switch value.(type) {
	case nil, *tensor.Tensor, string, []byte, int64, float64, bool:
		return nil
	}
	if r.cfg.Opaque(value) {
		return nil
	}
	var found []*Hold
	var walk func(v reflect.Value, depth int)
	walk = func(v reflect.Value, depth int) {
		if depth > 4 || !v.IsValid() || !v.CanInterface() || len(found) > 1000 {
			return
		}
		switch v.Kind() {
		case reflect.Pointer, reflect.Interface:
			if v.IsNil() {
				return
			}
			if core := r.cfg.Unwrap(v.Interface()); core != nil {
				found = append(found, core)
				return
			}
			walk(v.Elem(), depth+1)
		case reflect.Slice, reflect.Array:
			if plain(v.Type().Elem().Kind()) {
				return
			}
			for i := range min(v.Len(), 1000) {
				walk(v.Index(i), depth+1)
			}
		case reflect.Struct:
			for _, field := range v.Fields() {
				walk(field, depth+1)
			}
		default: // in maps nothing is looked for: see Holder
		}
	}
	walk(reflect.ValueOf(value), 0)
	return found
}

// plain reports whether values of a kind cannot hold anything.
func plain(k reflect.Kind) bool {
	return k >= reflect.Bool && k <= reflect.Complex128 || k == reflect.String
}

// tensorBytes adds up the tensors that a value shows on its surface.
func tensorBytes(v any, depth int) int {
	if depth > 4 {
		return 0
	}
	n := 0
	switch v := v.(type) {
	case *tensor.Tensor:
		n = v.NBytes()
	case []*tensor.Tensor:
		for _, t := range v {
			n += t.NBytes()
		}
	case map[string]*tensor.Tensor:
		for _, t := range v {
			n += t.NBytes()
		}
	case []any:
		for _, x := range v {
			n += tensorBytes(x, depth+1)
		}
	case []byte:
		n = len(v)
	}
	return n
}
