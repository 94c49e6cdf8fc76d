// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// TestPremulSum multiplies by a factor per rank in every reduction, and leaves other buffers unchanged.
func TestPremulSum(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			groups := newWorld(t, 3, WithTransport(transport))
			must(t, each(3, func(r int) error {
				g, f := groups[r], WithFactor([]float64{0.5, 2, -1}[r])
				v := float32(r + 1) // 0.5*1 + 2*2 - 3 = 1.5
				x := from(v, 2*v)
				if err := errors.Join(g.AllReduce(ctx, x, PremulSum, f).Wait(ctx), same[float32]("all_reduce", x, 1.5, 3)); err != nil {
					return err
				}
				grid := tensor.Must(tensor.From([]float32{v, 9, v, 9}, 2, 2))
				column := tensor.Must(grid.Select(1, 0))
				if err := errors.Join(g.AllReduce(ctx, column, PremulSum, f).Wait(ctx),
					same[float32]("column", grid, 1.5, 9, 1.5, 9)); err != nil {
					return err
				}
				x = from(v)
				want := v
				if r == 1 {
					want = 1.5
				}
				if err := errors.Join(g.Reduce(ctx, x, PremulSum, 1, f).Wait(ctx), same("reduce", x, want)); err != nil {
					return err
				}
				in, out := from(v, 2*v, 4*v), from[float32](0)
				err := errors.Join(g.ReduceScatterInto(ctx, out, in, PremulSum, f).Wait(ctx),
					same("into", out, []float32{1.5, 3, 6}[r]), same("input", in, v, 2*v, 4*v))
				if err != nil {
					return err
				}
				ins := []*tensor.Tensor{from(v), from(2 * v), from(4 * v)}
				err = errors.Join(g.ReduceScatter(ctx, out, ins, PremulSum, f).Wait(ctx),
					same("list", out, []float32{1.5, 3, 6}[r]), same("input", ins[2], 4*v))
				if err != nil {
					return err
				}
				a, b := from(float64(v)), from(float64(v), 0)
				err = g.Coalesce(ctx, func(c *Coalescer) {
					c.AllReduce(a, PremulSum)
					c.AllReduce(b, PremulSum)
				}, f).Wait(ctx)
				if err = errors.Join(err, same("a", a, 1.5), same("b", b, 1.5, 0)); err != nil {
					return err
				}
				return errors.Join(g.Coalesce(ctx, func(c *Coalescer) { c.ReduceScatterInto(out, in, PremulSum) }, f).Wait(ctx),
					same("scope", out, []float32{1.5, 3, 6}[r]), same("input", in, v, 2*v, 4*v))
			}))
		})
	}
}

// TestPremulSumArguments: nothing is changed by a call that is refused.
func TestPremulSumArguments(t *testing.T) {
	ctx := ctxOf(t)
	g := newWorld(t, 2)[0]
	over, cancel := context.WithCancel(ctx)
	cancel()
	x := from[float32](3)
	for i, w := range []*Work{
		g.AllReduce(ctx, x, PremulSum), g.AllReduce(ctx, x, Sum, WithFactor(2)), g.AllReduce(ctx, from[int64](3), PremulSum, WithFactor(2)),
		g.Reduce(ctx, x, PremulSum, 0), g.ReduceScatterInto(ctx, x, from[float32](1, 2), PremulSum),
		g.AllReduceCoalesced(ctx, []*tensor.Tensor{x}, PremulSum),
	} {
		if err := w.Wait(ctx); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if err := g.AllReduce(over, x, PremulSum, WithFactor(2)).Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, same[float32]("x", x, 3))
	if got := fmt.Sprint(PremulSum); got != "premul_sum" {
		t.Error(got)
	}
}
