// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Hold is one hold on an object, without its Go type.
type Hold struct {
	Refs     *Refs
	Object   *Object      // of an own object
	Handle   *Handle      // of another worker's
	Named    string       // the type of the object as a message or the program named it
	Type     reflect.Type // where Named is empty: its Go type, nil if it is not known
	Script   bool         // a TorchScript value of a PyTorch owner
	Assigned atomic.Bool
	Closed   atomic.Bool
}

// GoTypePrefix marks the names of Go types among those that travel with references.
const GoTypePrefix = "go:"

// IsGoType reports whether this names a Go type.
func IsGoType(name string) bool { return strings.HasPrefix(name, GoTypePrefix) }

// TypeName names the type of the object as it travels with a reference; "" fits everything.
func (c *Hold) TypeName() string {
	if c.Named != "" || c.Type == nil {
		return c.Named
	}
	return TypeName(c.Type)
}

// TypeName names a Go type as it travels with a reference.
func TypeName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Interface {
		return ""
	}
	if t.PkgPath() != "" && t.Name() != "" {
		return GoTypePrefix + t.PkgPath() + "." + t.Name()
	}
	return GoTypePrefix + t.String()
}

// Names returns the ids of the object and of the fork, which is empty for an own object. open is false when the hold was
// closed.
func (c *Hold) Names() (id, fork string, open bool) {
	switch {
	case c.Closed.Load():
		return "", "", false
	case c.Object != nil:
		return c.Object.ID.String(), "", true
	default:
		return c.Handle.Wire.ID.String(), c.Handle.Wire.Fork.String(), true
	}
}

// Text is the id of the object as PyTorch prints it.
func (c *Hold) Text() string {
	if c.Object != nil {
		return c.Object.ID.String()
	}
	return c.Handle.Wire.ID.String()
}

// Collect closes a hold that the program has forgotten.
func (c *Hold) Collect() {
	if !c.Closed.Load() {
		c.Refs.Collected.Add(1)
		c.Close()
	}
}

// Confirmed reports whether the owner is known to have registered the reference.
func (c *Hold) Confirmed() bool {
	if c.Object != nil {
		return true
	}
	c.Refs.mu.Lock()
	defer c.Refs.mu.Unlock()
	return c.Handle.Settled && c.Handle.err == nil
}

// Failure is the error of a reference that cannot be used.
func (c *Hold) Failure(op string, code rrefcore.Code) error {
	c.Refs.mu.Lock()
	defer c.Refs.mu.Unlock()
	return c.failureLocked(op, code)
}

func (c *Hold) failureLocked(op string, code rrefcore.Code) error {
	if c.Object != nil {
		return c.Refs.cfg.Failure(op, c.Object.ID, c.Refs.cfg.Name, code, nil)
	}
	return c.Refs.cfg.Failure(op, c.Handle.Wire.ID, c.Handle.Owner, code, c.Handle.cause)
}

// State returns why the reference cannot be used, or nil.
func (c *Hold) State() error {
	if c.Object != nil {
		return nil
	}
	c.Refs.mu.Lock()
	defer c.Refs.mu.Unlock()
	return c.Handle.err
}

// Usable returns why the reference cannot be used for op, or nil.
func (c *Hold) Usable(op string) error {
	if c.Closed.Load() {
		return c.Failure(op, rrefcore.Closed)
	}
	return c.State()
}

// Dup returns a second hold.
func (c *Hold) Dup() (*Hold, error) {
	if c.Closed.Load() {
		return nil, c.Failure("share", rrefcore.Closed)
	}
	r := c.Refs
	failpoint.At("rpc.refs.dup")
	r.mu.Lock()
	defer r.mu.Unlock()
	twin := &Hold{Refs: c.Refs, Object: c.Object, Handle: c.Handle, Named: c.Named, Type: c.Type, Script: c.Script}
	if c.Object != nil {
		if !r.mu.m.HoldLocal(c.Object.ID) {
			return nil, c.failureLocked("share", rrefcore.Gone)
		}
		return twin, nil
	}
	if c.Handle.holders == 0 {
		return nil, c.failureLocked("share", rrefcore.Closed)
	}
	c.Handle.holders++
	return twin, nil
}

// Close ends the hold, once.
func (c *Hold) Close() {
	if !c.Closed.CompareAndSwap(false, true) {
		return
	}
	r := c.Refs
	r.stepLazy(func(m *rrefcore.Machine) {
		if c.Object != nil {
			m.ReleaseLocal(c.Object.ID)
			return
		}
		c.Handle.holders--
		if c.Handle.holders == 0 {
			if !c.Handle.Settled { // who waits for that would wait in vain
				c.Handle.settle(r.unusable(c.Handle, rrefcore.Closed))
			}
			m.Drop(c.Handle.Wire.Fork)
			delete(r.mu.handles, c.Handle.Wire.Fork)
		}
	})
}
