// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

// Sparse is a tensor in coordinate form: the values at the columns of indices, zero elsewhere. It is carried by RPC as it is
// and has no arithmetic. It corresponds to a torch.sparse_coo tensor.
type Sparse struct {
	Shape        []int
	Indices      *Tensor // Int64, one row per sparse dimension
	Values       *Tensor // one entry per column of the indices
	RequiresGrad bool
}

// String writes the tensor as its indices, values and shape.
func (s *Sparse) String() string {
	size := make([]string, len(s.Shape))
	for i, n := range s.Shape {
		size[i] = strconv.Itoa(n)
	}
	end := ")"
	if len(size) == 1 {
		end = ",)"
	}
	return fmt.Sprintf("tensor(indices=%v, values=%v, size=(%s%s, layout=torch.sparse_coo)", s.Indices, s.Values,
		strings.Join(size, ", "), end)
}

// Check reports what is wrong with the parts of a sparse tensor, if something is: their types and shapes, or an index outside the
// shape. RPC does it for every tensor that is sent or received.
func (s *Sparse) Check() error {
	bad := func(format string, args ...any) error {
		return cohort.Newf("tensor: sparse", cohort.InvalidArgument, format, args...)
	}
	if s.Indices == nil || s.Values == nil {
		return bad("indices or values are missing")
	}
	if s.Indices.DType() != Int64 || s.Indices.Dims() != 2 {
		return bad("indices are %v with %d dimensions, want int64 with 2", s.Indices.DType(), s.Indices.Dims())
	}
	sparseDims, count := s.Indices.Dim(0), s.Indices.Dim(1)
	if s.Values.Dims() == 0 || s.Values.Dim(0) != count || sparseDims+s.Values.Dims()-1 != len(s.Shape) {
		return bad("%d indices of %d dimensions and values of shape %v do not make a tensor of shape %v", count, sparseDims,
			s.Values.Shape(), s.Shape)
	}
	for i := 1; i < s.Values.Dims(); i++ {
		if s.Values.Dim(i) != s.Shape[sparseDims+i-1] {
			return bad("values of shape %v do not fit shape %v", s.Values.Shape(), s.Shape)
		}
	}
	index, err := s.Indices.Contiguous()
	if err != nil {
		return err
	}
	data, err := Data[int64](index)
	if err != nil {
		return err
	}
	for d := range sparseDims {
		if s.Shape[d] < 0 {
			return bad("negative size in shape %v", s.Shape)
		}
		for _, v := range data[d*count : (d+1)*count] {
			if v < 0 || v >= int64(s.Shape[d]) {
				return bad("index %d is outside dimension %d of shape %v", v, d, s.Shape)
			}
		}
	}
	return nil
}
