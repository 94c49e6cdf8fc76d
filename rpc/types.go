// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/tensor"
)

// WithElementTypes declares that every PyTorch worker of the world knows these element types: the Float8 types, which PyTorch
// has had since 2.1, and Uint16, Uint32 and Uint64, since 2.3. A process of an older version crashes when it receives
// one. Without this option they are sent only to Go workers, and to a PyTorch worker that has sent one itself.
func WithElementTypes(types ...tensor.DType) Option {
	return option(func(c *config) error {
		for _, dt := range types {
			if !dt.Valid() {
				return cohort.Newf("rpc: join", cohort.InvalidArgument, "%v is not an element type", dt)
			}
			c.types |= rpcsession.LaterType(dt)
		}
		return nil
	})
}
