// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"sync"
)

// Future is the value of something that is still running. It completes exactly once.
//
// It corresponds to torch.futures.Future.
type Future[T any] struct {
	done chan struct{}

	mu        sync.Mutex
	completed bool
	value     T
	err       error
	callbacks []func(T, error)
}

// NewFuture returns a Future that is not complete yet.
func NewFuture[T any]() *Future[T] { return &Future[T]{done: make(chan struct{})} }

// Complete sets the result, runs the callbacks and wakes every waiter. Only the first call has an effect; it returns
// whether this was the first.
func (f *Future[T]) Complete(value T, err error) bool {
	f.mu.Lock()
	if f.completed {
		f.mu.Unlock()
		return false
	}
	f.completed, f.value, f.err = true, value, err
	callbacks := f.callbacks
	f.callbacks = nil
	f.mu.Unlock()
	close(f.done)
	for _, call := range callbacks {
		call(value, err)
	}
	return true
}

// Done is closed when the future is complete.
func (f *Future[T]) Done() <-chan struct{} { return f.done }

// Completed reports whether the result is there, without waiting.
func (f *Future[T]) Completed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.completed
}

// Await returns the result when it is there. When ctx ends first, it returns the context's error; the operation itself
// goes on and may be awaited again.
func (f *Future[T]) Await(ctx context.Context) (T, error) {
	select {
	case <-f.done:
		return f.value, f.err
	default:
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		var zero T
		return zero, FromContext("await", ctx)
	}
}

// OnDone calls fn once with the result: at once, in this goroutine, when the future is complete already, else in the
// goroutine that completes it. fn must not block.
func (f *Future[T]) OnDone(fn func(T, error)) {
	f.mu.Lock()
	if !f.completed {
		f.callbacks = append(f.callbacks, fn)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	fn(f.value, f.err)
}
