// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// Future is the value of something that is still running. It completes exactly once, by the [Promise] that it belongs to.
//
// It corresponds to torch.futures.Future.
type Future[T any] struct {
	done chan struct{}

	mu struct {
		sync.Mutex
		completed bool
		value     T
		err       error
		inner     []func(T, error) // of this package: they do not block and call no user code
		callbacks []func(T, error)
	}
}

// Promise is the right to complete a [Future]. The code that produces the value keeps the promise and hands out the
// future. Make it with [NewPromise]: the zero value cannot be completed.
//
// It corresponds to set_result and set_exception of torch.futures.Future, which in PyTorch anyone may call.
type Promise[T any] struct{ future Future[T] }

// NewPromise returns a promise whose future is not complete yet.
func NewPromise[T any]() *Promise[T] {
	return &Promise[T]{future: Future[T]{done: make(chan struct{})}}
}

// Future returns the future of the promise, always the same.
func (p *Promise[T]) Future() *Future[T] { return &p.future }

// Complete sets the result, wakes every waiter and starts the callbacks. Only the first call has an effect; it returns
// whether this was the first.
func (p *Promise[T]) Complete(value T, err error) bool {
	f := &p.future
	f.mu.Lock()
	if f.mu.completed {
		f.mu.Unlock()
		return false
	}
	f.mu.completed, f.mu.value, f.mu.err = true, value, err
	inner, callbacks := f.mu.inner, f.mu.callbacks
	f.mu.inner, f.mu.callbacks = nil, nil
	f.mu.Unlock()
	close(f.done)
	for _, call := range inner {
		call(value, err)
	}
	if len(callbacks) > 0 {
		go runCallbacks(callbacks, value, err)
	}
	return true
}

// runCallbacks calls users' callbacks in order. One that ends its goroutine does not take the others with it.
func runCallbacks[T any](callbacks []func(T, error), value T, err error) {
	at := 0
	defer func() {
		if at < len(callbacks) { // runtime.Goexit in the one before
			go runCallbacks(callbacks[at:], value, err)
		}
	}()
	for at < len(callbacks) {
		at++
		guarded(callbacks[at-1], value, err)
	}
}

// guarded calls a user's callback. A panic ends the callback and nothing else.
func guarded[T any](call func(T, error), value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("panic in a callback of a future", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		}
	}()
	call(value, err)
}

// Done returns a channel that is closed when the future is complete.
func (f *Future[T]) Done() <-chan struct{} { return f.done }

// Completed reports, without waiting, whether the future is complete.
func (f *Future[T]) Completed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.completed
}

// Await waits for the result and returns it. If ctx ends first, it returns the context's error; the operation itself
// continues and may be awaited again.
func (f *Future[T]) Await(ctx context.Context) (T, error) {
	select {
	case <-f.done:
		return f.result()
	default:
	}
	select {
	case <-f.done:
		return f.result()
	case <-ctx.Done():
		var zero T
		return zero, FromContext(ctx, "await")
	}
}

// result is what a complete future holds. Completion is the last change of it.
func (f *Future[T]) result() (T, error) { return f.mu.value, f.mu.err }

// OnDone calls fn once with the result when the future is complete, or at once if it already is. fn runs in its own
// goroutine, so it may block and wait for other calls. Callbacks that were added before the completion run one after
// another, in order. A panic in fn is logged to [slog.Default] and ends only fn. A nil fn is ignored.
func (f *Future[T]) OnDone(fn func(T, error)) {
	if fn == nil {
		return
	}
	f.mu.Lock()
	if !f.mu.completed {
		f.mu.callbacks = append(f.mu.callbacks, fn)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	go guarded(fn, f.mu.value, f.mu.err)
}

// whenDone calls fn once with the result, in the goroutine that completes the future or in this one. fn must not block.
func (f *Future[T]) whenDone(fn func(T, error)) {
	f.mu.Lock()
	if !f.mu.completed {
		f.mu.inner = append(f.mu.inner, fn)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	fn(f.mu.value, f.mu.err)
}

// String reports whether the result is there, and what it is.
func (f *Future[T]) String() string {
	if !f.Completed() {
		return fmt.Sprintf("future of %T, not complete", *new(T))
	}
	value, err := f.result()
	if err != nil {
		return "future, failed: " + err.Error()
	}
	return fmt.Sprintf("future of %T: %v", value, value)
}

// String describes the promise's future.
func (p *Promise[T]) String() string { return "promise of a " + p.future.String() }

// Then returns a future with the result of fn, which is called with the result of f. fn runs once, in its own goroutine
// as with [Future.OnDone], so it may block. It also gets a failure and may replace it. If fn panics, the new future fails
// with the code [Internal] and the stack in its text.
//
// It corresponds to torch.futures.Future.then.
func Then[T, U any](f *Future[T], fn func(T, error) (U, error)) *Future[U] {
	next := NewPromise[U]()
	if f == nil || fn == nil {
		var zero U
		next.Complete(zero, New("then", InvalidArgument, "the future or the function is nil"))
		return next.Future()
	}
	f.OnDone(func(value T, err error) {
		returned := false
		defer func() {
			if returned {
				return
			}
			var zero U
			failure := New("then", Internal, "the callback ended its goroutine")
			if p := recover(); p != nil {
				failure.Detail = fmt.Sprintf("panic in a callback: %v\n%s", p, debug.Stack())
			}
			next.Complete(zero, failure)
		}()
		made, failure := fn(value, err)
		returned = true
		next.Complete(made, failure)
	})
	return next.Future()
}

// All returns a future with the results of all futures, in order. If one of them fails, it fails at once with that error,
// without waiting for the others.
//
// It corresponds to torch.futures.collect_all; awaiting it to torch.futures.wait_all.
func All[T any](futures ...*Future[T]) *Future[[]T] {
	all := NewPromise[[]T]()
	values := make([]T, len(futures))
	if len(futures) == 0 {
		all.Complete(values, nil)
		return all.Future()
	}
	var mu sync.Mutex
	left := len(futures)
	for i, f := range futures {
		if f == nil {
			all.Complete(nil, Newf("all", InvalidArgument, "future %d of %d is nil", i, len(futures)))
			continue
		}
		f.whenDone(func(value T, err error) {
			if err != nil {
				all.Complete(nil, err)
				return
			}
			mu.Lock()
			values[i] = value
			left--
			last := left == 0
			mu.Unlock()
			if last {
				all.Complete(values, nil)
			}
		})
	}
	return all.Future()
}
