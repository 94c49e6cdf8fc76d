// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// BenchmarkHops is forward, backward and clean-up of a tiny graph over calls that are nested between two workers, as
// "cohort bench train" measures it, with both workers in one process.
func BenchmarkHops(b *testing.B) {
	for _, depth := range []int{1, 8} {
		b.Run(fmt.Sprintf("fast%d", depth), func(b *testing.B) { benchHops(b, depth, distautograd.Fast()) })
		b.Run(fmt.Sprintf("smart%d", depth), func(b *testing.B) { benchHops(b, depth) })
	}
}

func benchHops(b *testing.B, depth int, opts ...distautograd.PassOption) {
	b.Helper()
	ctx := b.Context()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	reg := rpc.NewRegistry().MustHandle("bench.mul", func(ctx context.Context, t *autograd.Variable, depth int) (*autograd.Variable, error) {
		u := t.Scale(2)
		if depth > 1 {
			self := rpc.AgentFrom(ctx)
			return rpc.Call[*autograd.Variable](ctx, self, fmt.Sprintf("w%d", 1-self.ID()), "bench.mul", u, depth-1)
		}
		return u, u.Err()
	})
	var agents [2]*rpc.Agent
	var engines [2]*distautograd.Engine
	for i := range agents {
		var err error
		engines[i] = distautograd.New()
		agents[i], err = rpc.Join(ctx, st, fmt.Sprintf("w%d", i), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), engines[i].Join())
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = agents[i].Close() }()
	}
	x := param(1, 1, 1, 1)
	b.ReportAllocs()
	for b.Loop() {
		gctx, c, err := engines[0].Open(ctx)
		if err != nil {
			b.Fatal(err)
		}
		y, err := rpc.Call[*autograd.Variable](gctx, agents[0], "w1", "bench.mul", x, depth)
		if err == nil {
			err = c.Backward(gctx, []*autograd.Variable{y.Sum()}, opts...)
		}
		if err != nil || c.Gradient(x) == nil {
			b.Fatal(err, c.Gradient(x))
		}
		_ = c.Close()
	}
}
