// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpoint

import "sync/atomic"

var hook atomic.Pointer[func(point string)]

// At marks a point of execution. The name reports where: "tcpstore.client.write".
func At(point string) {
	if f := hook.Load(); f != nil {
		(*f)(point)
	}
}

// SetHook has f called at every point of every goroutine, until the function that it returns is called. There is one
// hook in a process: tests that set it do not run in parallel.
func SetHook(f func(point string)) (restore func()) {
	old := hook.Swap(&f)
	return func() { hook.Store(old) }
}
