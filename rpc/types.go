// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/tensor"
)

// WithElementTypes says that every PyTorch worker of the world knows these element types: the Float8 types, which PyTorch
// has since 2.1, and Uint16, Uint32 and Uint64, since 2.3. A process of an older version ends at the sight of one.
// Without it they are sent to Go workers, and to a PyTorch worker that has sent one itself.
func WithElementTypes(types ...tensor.DType) Option {
	return option(func(c *config) error {
		for _, dt := range types {
			if !dt.Valid() {
				return dist.Newf("rpc: join", dist.InvalidArgument, "%v is not an element type", dt)
			}
			c.types |= laterType(dt)
		}
		return nil
	})
}

// laterType is the bit of an element type that PyTorch has not always had, 0 for one that it has.
func laterType(dt tensor.DType) uint32 {
	if dt < tensor.Float8E5M2 {
		return 0
	}
	return 1 << (dt - tensor.Float8E5M2)
}

// knownTypes are the later element types that a PyTorch worker has shown to know.
type knownTypes struct{ bits atomic.Uint32 }

func tensorTypes(v any) uint32 {
	switch t := v.(type) {
	case *tensor.Tensor:
		return laterType(t.DType())
	case *rpcwire.Sparse:
		return laterType(t.Values.DType())
	}
	return 0
}

// learn notes the types of a message that the worker sent.
func (k *knownTypes) learn(tensors []any) {
	for _, t := range tensors {
		if bit := tensorTypes(t); bit != 0 {
			k.bits.Or(bit)
		}
	}
}

// check refuses a message whose types could end the worker's process.
func (k *knownTypes) check(tensors []any, told uint32) error {
	for _, t := range tensors {
		if bit := tensorTypes(t); bit&^(told|k.bits.Load()) != 0 {
			what := t
			if s, ok := t.(*rpcwire.Sparse); ok {
				what = s.Values
			}
			return dist.Newf("rpc: send", dist.NotSupported,
				"a tensor of %v would end a PyTorch process older than that type: convert it, or say with WithElementTypes that there is none", what.(*tensor.Tensor).DType()) //nolint:errcheck,forcetypeassert // the only two
		}
	}
	return nil
}
