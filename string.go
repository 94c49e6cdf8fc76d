// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort

import "fmt"

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
