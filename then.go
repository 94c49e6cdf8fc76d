// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"fmt"
	"runtime/debug"
	"sync"
)

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
