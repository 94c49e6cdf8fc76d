// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync/atomic"
	"testing"

	"github.com/cohort-dist/cohort/tensor"
)

// TestAlloc: received tensors, of calls and of results, are in memory that the program provides.
func TestAlloc(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		const origin, elements = "pool of the test", 1 << 20
		var asked atomic.Int64
		alloc := func(n int) (*tensor.Storage, error) {
			asked.Add(1)
			return tensor.WrapStorage(make([]byte, n), origin, nil), nil
		}
		there := make(chan string, 1)
		reg := NewRegistry().MustHandle("test.echo", func(x *tensor.Tensor) *tensor.Tensor {
			there <- x.Storage().Origin()
			return x
		})
		agents := world(t, 2, true, func(int) *Registry { return reg }, append(opts, WithAlloc(alloc))...)
		defer shutdown(t, agents)
		x := tensor.Must(tensor.New(tensor.Float32, elements))
		got, err := Call[*tensor.Tensor](testContext(t), agents[0], "w1", "test.echo", x)
		if err != nil {
			t.Fatal(err)
		}
		if at := <-there; at != origin || got.Storage().Origin() != origin || asked.Load() < 2 {
			t.Errorf("there %q, here %q, asked %d times", at, got.Storage().Origin(), asked.Load())
		}
	})
}
