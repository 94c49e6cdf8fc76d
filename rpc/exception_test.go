// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"testing"
)

// TestExceptionWithoutText: an exception comes back from a Go worker on either transport as it was raised.
func TestExceptionWithoutText(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("v.fail", func(text string) error { return Raise("ValueError", "%s", text) })
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		for _, said := range []string{"", `a\nb`, "two\nlines", "ü"} {
			_, err := Call[any](testContext(t), agents[0], "w1", "v.fail", said)
			remote, ok := errors.AsType[*RemoteError](err)
			if !ok || remote.Kind != "ValueError" || remote.Message != said {
				t.Errorf("%q became %#v", said, err)
			}
		}
		shutdown(t, agents)
	})
}
