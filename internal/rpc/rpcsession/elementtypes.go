// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// LaterType is the bit of an element type that PyTorch has not always had, 0 for one that it has.
func LaterType(dt tensor.DType) uint32 {
	if dt < tensor.Float8E5M2 {
		return 0
	}
	return 1 << (dt - tensor.Float8E5M2)
}

// knownTypes are the later element types that a PyTorch worker has been seen to know.
type knownTypes struct{ bits atomic.Uint32 }

func tensorTypes(v any) uint32 {
	switch t := v.(type) {
	case *tensor.Tensor:
		return LaterType(t.DType())
	case *tensor.Sparse:
		return LaterType(t.Values.DType())
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
func (k *knownTypes) check(tensors []any, all uint32) error {
	for _, t := range tensors {
		if bit := tensorTypes(t); bit&^(all|k.bits.Load()) != 0 {
			what := t
			if s, ok := t.(*tensor.Sparse); ok {
				what = s.Values
			}
			return cohort.Newf("rpc: send", cohort.NotSupported,
				"a tensor of %v would end a PyTorch process older than that type: convert it, or declare with WithElementTypes that all processes know it", what.(*tensor.Tensor).DType()) //nolint:errcheck,forcetypeassert // the only two
		}
	}
	return nil
}
