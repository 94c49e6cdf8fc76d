// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Object is a value that this worker owns, or the place where it will be.
type Object struct {
	r     *Refs
	ID    rrefcore.ID
	Since time.Time

	where  string // what created it; guarded by refs.mu
	by     string // for another worker; guarded by refs.mu
	called bool   // its creating call has come; guarded by refs.mu

	mu struct {
		sync.Mutex
		done    bool
		ready   chan struct{} // made when a caller waits
		value   any
		size    int     // bytes of the tensors that the value had when it was made
		kept    []*Hold // references that it had then
		err     error
		waiters map[*waiter]struct{}
		cancel  context.CancelCauseFunc // of the function that makes it
	}
}

// object returns the place of an own object. Called with the lock.
func (r *Refs) object(id rrefcore.ID) *Object {
	o := r.mu.objects[id]
	if o == nil {
		o = &Object{r: r, ID: id, Since: time.Now()}
		r.mu.objects[id] = o
	}
	return o
}

// Set gives the object its value or error. Only the first counts.
func (o *Object) Set(value any, err error) {
	size, kept := tensorBytes(value, 0), o.r.referencesIn(value) // now: later its owner may change it at any time
	o.mu.Lock()
	if o.mu.done {
		o.mu.Unlock()
		return
	}
	o.mu.done, o.mu.value, o.mu.size, o.mu.kept, o.mu.err, o.mu.cancel = true, value, size, kept, err, nil
	waiters := o.mu.waiters
	o.mu.waiters = nil
	if o.mu.ready != nil {
		close(o.mu.ready)
	}
	o.mu.Unlock()
	for w := range waiters {
		w.fn()
	}
}

// waiter is a caller that is notified when an object has its value.
type waiter struct{ fn func() }

// freed ends the waits for an object without references.
func (o *Object) freed() {
	o.Set(nil, o.r.cfg.Failure("fetch", o.ID, o.r.cfg.Name, rrefcore.Gone, nil))
}

// Begin makes the function that makes the value cancellable.
func (o *Object) Begin(cancel context.CancelCauseFunc) {
	failpoint.At("rpc.refs.begin")
	o.mu.Lock()
	if !o.mu.done {
		o.mu.cancel = cancel
	}
	o.mu.Unlock()
}

// stop cancels the function that makes the value.
func (o *Object) stop(cause error) {
	o.mu.Lock()
	cancel := o.mu.cancel
	o.mu.cancel = nil
	o.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// Then calls fn when the value is there, at once if it is. remove gives it up; it reports whether fn will not be called.
func (o *Object) Then(fn func()) (remove func() bool) {
	w := &waiter{fn}
	failpoint.At("rpc.refs.then")
	o.mu.Lock()
	if o.mu.done {
		o.mu.Unlock()
		fn()
		return func() bool { return false }
	}
	if o.mu.waiters == nil {
		o.mu.waiters = map[*waiter]struct{}{}
	}
	o.mu.waiters[w] = struct{}{}
	o.mu.Unlock()
	return func() bool {
		failpoint.At("rpc.refs.then.remove")
		o.mu.Lock()
		defer o.mu.Unlock()
		_, waits := o.mu.waiters[w]
		delete(o.mu.waiters, w)
		return waits
	}
}

// Waiting returns how many are to be told when the value is there.
func (o *Object) Waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.waiters)
}

// Get waits for the value.
func (o *Object) Get(ctx context.Context) (any, error) {
	failpoint.At("rpc.refs.get")
	o.mu.Lock()
	if !o.mu.done {
		if o.mu.ready == nil {
			o.mu.ready = make(chan struct{})
		}
		ready := o.mu.ready
		o.mu.Unlock()
		pl := rpcslots.Of(ctx)
		pl.Pause()
		defer pl.Resume()
		failpoint.At("rpc.refs.get.wait")
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, cohort.FromContext(ctx, "rpc: local value")
		}
		failpoint.At("rpc.refs.got")
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	return o.mu.value, o.mu.err
}

// Peek returns the value if it is there.
func (o *Object) Peek() (value any, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.value, o.mu.err
}

// Bytes returns the size of its tensors.
func (o *Object) Bytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.size
}

// Held returns the value and the references that it had when it was made.
func (o *Object) Held() (value any, kept []*Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.value, o.mu.kept
}

// IsDone reports whether the value is there.
func (o *Object) IsDone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.done
}

// Handle is a reference of this worker to an object of another one. Guarded by refs.mu.
type Handle struct {
	Wire    rrefcore.Wire
	Owner   string
	where   string
	holders int // Go references that share it
	cause   error

	Settled bool // confirmed or failed
	err     error
	ready   chan struct{} // closed when it is settled; made on demand
}

// Ready returns what is closed when a reference is confirmed or has failed.
func (r *Refs) Ready(h *Handle) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.ready == nil {
		h.ready = make(chan struct{})
		if h.Settled {
			close(h.ready)
		}
	}
	return h.ready
}

func (h *Handle) settle(err error) {
	if h.Settled {
		if err != nil && h.err == nil {
			h.err = err // confirmed before, unusable now
		}
		return
	}
	h.Settled, h.err = true, err
	if h.ready != nil {
		close(h.ready)
	}
}

// unusable is the error of every use of a handle. Called with the lock.
func (r *Refs) unusable(h *Handle, code rrefcore.Code) error {
	return r.cfg.Failure("use", h.Wire.ID, h.Owner, code, h.cause)
}

// enter makes the handle of a fork. Called with the lock.
func (r *Refs) enter(w rrefcore.Wire, where string) *Handle {
	h := &Handle{Wire: w, where: where, holders: 1}
	if p := r.cfg.Net.PeerByID(w.Owner); p != nil {
		h.Owner = p.Name
	}
	r.mu.handles[w.Fork] = h
	return h
}
