// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/tensor"
)

// TestTypesThatGroupsDoNotCarry refuses the element types that only messages of RPC have, before anything is sent: the
// group goes on.
func TestTypesThatGroupsDoNotCarry(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport))
			ctx := context.Background()
			for _, dt := range []tensor.DType{tensor.Complex32, tensor.Float8E4M3FN, tensor.Uint16, tensor.Uint32, tensor.Uint64} {
				x := tensor.Must(tensor.New(dt, 4))
				for name, w := range map[string]*Work{
					"broadcast": groups[0].Broadcast(ctx, x, 0), "all_reduce": groups[0].AllReduce(ctx, x, Sum), "send": groups[0].Send(ctx, x, 1, 0),
				} {
					if err := w.Wait(ctx); !errors.Is(err, dist.NotSupported) {
						t.Errorf("%s of %v: %v", name, dt, err)
					}
				}
			}
			must(t, each(2, func(r int) error { return groups[r].AllReduce(ctx, from(float32(r)), Sum).Wait(ctx) }))
		})
	}
}
