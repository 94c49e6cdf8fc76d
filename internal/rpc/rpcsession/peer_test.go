// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// A worker that has sent an element type may be sent it.
func TestKnownTypes(t *testing.T) {
	var k knownTypes
	seen := tensor.Must(tensor.New(tensor.Float8E5M2, 2))
	k.learn([]any{seen, &tensor.Sparse{Values: tensor.Must(tensor.New(tensor.Uint32, 1))}})
	if err := k.check([]any{seen, tensor.Must(tensor.New(tensor.Uint32, 1)), tensor.Must(tensor.New(tensor.Float32, 1))}, 0); err != nil {
		t.Error(err)
	}
	other := tensor.Must(tensor.New(tensor.Uint64, 1))
	if err := k.check([]any{other}, 0); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("a type that was not seen: %v", err)
	}
	if err := k.check([]any{other}, LaterType(tensor.Uint64)); err != nil {
		t.Errorf("a type that all are said to know: %v", err)
	}
}

// TestCarriedIsBounded: what may have been swallowed by a link is remembered for a while, and not without bound.
func TestCarriedIsBounded(t *testing.T) {
	c := &Conn{}
	for range maxCarried + 1000 {
		c.Carry(nil)
	}
	if n := len(c.mu.carried); n > maxCarried {
		t.Errorf("%d answers are remembered", n)
	}
}
