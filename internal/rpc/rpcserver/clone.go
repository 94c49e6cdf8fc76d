// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"github.com/cohort-dist/cohort/internal/rpc/tensortable"
	"github.com/cohort-dist/cohort/tensor"
)

// cloneTensors copies the tensors of a message to oneself as a wire would: views of one storage share the copy.
func cloneTensors(in []any) ([]any, error) {
	out := make([]any, len(in))
	var copies map[*tensor.Storage]*tensor.Storage
	dense := func(t *tensor.Tensor) (*tensor.Tensor, error) {
		c, err := tensortable.Compact(t)
		if err != nil || c != t {
			return c, err
		}
		st := copies[t.Storage()]
		if st == nil {
			from, failed := t.Storage().Bytes()
			if failed != nil {
				return nil, failed
			}
			if st, err = tensor.NewStorage(len(from)); err != nil {
				return nil, err
			}
			to, failed := st.Bytes()
			if failed != nil {
				return nil, failed
			}
			copy(to, from)
			if copies == nil {
				copies = map[*tensor.Storage]*tensor.Storage{}
			}
			copies[t.Storage()] = st
		}
		if c, err = tensor.FromStorage(st, t.DType(), t.Shape(), t.Strides(), t.Offset()); err != nil {
			return nil, err
		}
		return c.SetRequiresGrad(t.RequiresGrad()), nil
	}
	for i, t := range in {
		var err error
		switch t := t.(type) {
		case *tensor.Tensor:
			out[i], err = dense(t)
		case *tensor.Sparse:
			twin := *t
			if twin.Indices, err = dense(t.Indices); err == nil {
				twin.Values, err = dense(t.Values)
			}
			out[i] = &twin
		default:
			out[i] = t
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
