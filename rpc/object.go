// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// object is a value that this worker owns, or the place where it will be.
type object struct {
	r     *refs
	id    rrefcore.ID
	since time.Time

	where  string // what created it; guarded by refs.mu
	called bool   // its creating call has come; guarded by refs.mu

	mu      sync.Mutex
	done    bool
	ready   chan struct{} // made when somebody waits
	value   any
	size    int        // bytes of the tensors that the value had when it was made
	kept    []*refCore // references that it had then
	err     error
	waiters map[*waiter]struct{}
	cancel  context.CancelCauseFunc // of the function that makes it
}

// object returns the place of an own object. Called with the lock.
func (r *refs) object(id rrefcore.ID) *object {
	o := r.objects[id]
	if o == nil {
		o = &object{r: r, id: id, since: time.Now()}
		r.objects[id] = o
	}
	return o
}

// set gives the object its value or error. Only the first counts.
func (o *object) set(value any, err error) {
	size, kept := tensorBytes(value, 0), referencesIn(value) // now: later its owner may change it at any time
	o.mu.Lock()
	if o.done {
		o.mu.Unlock()
		return
	}
	o.done, o.value, o.size, o.kept, o.err, o.cancel = true, value, size, kept, err, nil
	waiters := o.waiters
	o.waiters = nil
	if o.ready != nil {
		close(o.ready)
	}
	o.mu.Unlock()
	for w := range waiters {
		w.fn()
	}
}

// waiter is somebody who is told when an object has its value.
type waiter struct{ fn func() }

// freed ends the waits for an object that nobody refers to any more.
func (o *object) freed() {
	o.set(nil, refFailure("fetch", o.id, o.r.a.name, rrefcore.Gone, nil))
}

// stop cancels the function that makes the value.
func (o *object) stop(cause error) {
	o.mu.Lock()
	cancel := o.cancel
	o.cancel = nil
	o.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// then calls fn when the value is there, at once if it is. remove gives it up; it reports whether fn will not be called.
func (o *object) then(fn func()) (remove func() bool) {
	w := &waiter{fn}
	o.mu.Lock()
	if o.done {
		o.mu.Unlock()
		fn()
		return func() bool { return false }
	}
	if o.waiters == nil {
		o.waiters = map[*waiter]struct{}{}
	}
	o.waiters[w] = struct{}{}
	o.mu.Unlock()
	return func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		_, waits := o.waiters[w]
		delete(o.waiters, w)
		return waits
	}
}

// get waits for the value.
func (o *object) get(ctx context.Context) (any, error) {
	o.mu.Lock()
	if !o.done {
		if o.ready == nil {
			o.ready = make(chan struct{})
		}
		ready := o.ready
		o.mu.Unlock()
		pl := rpcplace.Of(ctx)
		pl.Pause()
		defer pl.Resume()
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, dist.FromContext("rpc: local value", ctx)
		}
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	return o.value, o.err
}

// peek returns the value if it is there.
func (o *object) peek() (value any, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.value, o.err
}

// bytes returns the size of its tensors.
func (o *object) bytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size
}

func (o *object) isDone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done
}

// handle is a reference of this worker to an object of another one. Guarded by refs.mu.
type handle struct {
	wire    rrefcore.Wire
	owner   string
	where   string
	holders int // Go references that share it
	cause   error

	settled bool
	err     error
	ready   chan struct{} // closed when confirmed or failed
}

func (h *handle) settle(err error) {
	if h.settled {
		if err != nil && h.err == nil {
			h.err = err // confirmed before, unusable now
		}
		return
	}
	h.settled, h.err = true, err
	close(h.ready)
}

func (h *handle) failure(code rrefcore.Code) error {
	return refFailure("use", h.wire.ID, h.owner, code, h.cause)
}

// enter makes the handle of a fork. Called with the lock.
func (r *refs) enter(w rrefcore.Wire, where string) *handle {
	h := &handle{wire: w, where: where, holders: 1, ready: make(chan struct{})}
	if p := r.a.net.PeerByID(w.Owner); p != nil {
		h.owner = p.Name
	}
	r.handles[w.Fork] = h
	return h
}
