// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package dist

import "sync"

// Then returns a future with what fn makes of the result of f. fn runs once, where [Future.OnDone] would call it, and must
// not block. It also sees a failure and may replace it.
//
// It corresponds to torch.futures.Future.then.
func Then[T, U any](f *Future[T], fn func(T, error) (U, error)) *Future[U] {
	next := NewFuture[U]()
	f.OnDone(func(value T, err error) { next.Complete(fn(value, err)) })
	return next
}

// All returns a future with the results of all futures in their order. It fails as soon as one of them does, with that
// error, and does not wait for the others then.
//
// It corresponds to torch.futures.collect_all; awaiting it to torch.futures.wait_all.
func All[T any](futures ...*Future[T]) *Future[[]T] {
	all := NewFuture[[]T]()
	values := make([]T, len(futures))
	if len(futures) == 0 {
		all.Complete(values, nil)
		return all
	}
	var mu sync.Mutex
	left := len(futures)
	for i, f := range futures {
		f.OnDone(func(value T, err error) {
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
	return all
}
