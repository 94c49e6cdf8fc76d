// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// action is one operation of a random plan, the same on all ranks.
type action struct {
	kind, n, root, sub int // sub: which sub-group, -1 for the world
	op                 ReduceOp
	float              bool
}

const kinds = 9

// plan makes random actions for a world whose sub-groups have the given sizes.
func randomActions(rng *rand.Rand, count, size int, subs [][]int) []action {
	actions := make([]action, count)
	for i := range actions {
		a := action{
			kind: rng.IntN(kinds), sub: rng.IntN(len(subs)+1) - 1, op: []ReduceOp{Sum, Max, Min}[rng.IntN(3)],
			float: rng.IntN(2) == 0,
		}
		a.n = []int{0, 1, 3, 100, 5000, 1 + rng.IntN(40_000)}[rng.IntN(6)]
		members := size
		if a.sub >= 0 {
			members = len(subs[a.sub])
		}
		a.root = rng.IntN(members)
		actions[i] = a
	}
	return actions
}

// value is what rank r has at index i in action k: small whole numbers, so that every order of a sum gives the same bits.
func value(k, r, i int) int { return (k*31 + r*17 + i*7) % 97 }

func fold(op ReduceOp, n int, at func(rank int) int) int {
	acc := at(0)
	for r := 1; r < n; r++ {
		switch op {
		case Max:
			acc = max(acc, at(r))
		case Min:
			acc = min(acc, at(r))
		default:
			acc += at(r)
		}
	}
	return acc
}

func vector(float bool, n int, at func(i int) int) *tensor.Tensor {
	if float {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(at(i))
		}
		return from(v...)
	}
	v := make([]int64, n)
	for i := range v {
		v[i] = int64(at(i))
	}
	return from(v...)
}

// begin posts an action and returns its works and a check of the result.
func (a action) begin(ctx context.Context, g *Group, k int) ([]*Work, func() error) {
	me, n := int(g.Rank()), g.Size()
	expect := func(got *tensor.Tensor, length int, at func(i int) int) func() error {
		return func() error {
			if want := vector(a.float, length, at); !tensor.SameBits(got, want) {
				return fmt.Errorf("action %d (%+v) on rank %d of %d: wrong result", k, a, me, n)
			}
			return nil
		}
	}
	own := vector(a.float, a.n, func(i int) int { return value(k, me, i) })
	reduced := func(i int) int { return fold(a.op, n, func(r int) int { return value(k, r, i) }) }
	nothing := func() error { return nil }
	switch a.kind {
	case 0:
		return []*Work{g.AllReduce(ctx, own, a.op)}, expect(own, a.n, reduced)
	case 1:
		return []*Work{g.Broadcast(ctx, own, cohort.Rank(a.root))}, expect(own, a.n, func(i int) int { return value(k, a.root, i) })
	case 2:
		w := g.Reduce(ctx, own, a.op, cohort.Rank(a.root))
		if me != a.root {
			return []*Work{w}, nothing
		}
		return []*Work{w}, expect(own, a.n, reduced)
	case 3:
		out := vector(a.float, a.n*n, func(int) int { return -1 })
		return []*Work{g.AllGatherInto(ctx, out, own)}, expect(out, a.n*n, func(i int) int { return value(k, i/a.n, i%a.n) })
	case 4:
		in := vector(a.float, a.n*n, func(i int) int { return value(k, me, i) })
		out := vector(a.float, a.n, func(int) int { return -1 })
		return []*Work{g.ReduceScatterInto(ctx, out, in, a.op)}, expect(out, a.n, func(i int) int { return reduced(me*a.n + i) })
	case 5:
		in := vector(a.float, a.n*n, func(i int) int { return value(k, me, i) })
		out := vector(a.float, a.n*n, func(int) int { return -1 })
		return []*Work{g.AllToAllInto(ctx, out, in, nil, nil)}, expect(out, a.n*n, func(i int) int { return value(k, i/a.n, me*a.n+i%a.n) })
	case 6:
		if n == 1 {
			return nil, nothing
		}
		out := vector(a.float, a.n, func(int) int { return -1 })
		left := (me - 1 + n) % n
		return g.Batch(ctx, []P2POp{{OpSend, own, cohort.Rank((me + 1) % n), k}, {OpRecv, out, cohort.Rank(left), k}}),
			expect(out, a.n, func(i int) int { return value(k, left, i) })
	case 7:
		var ins []*tensor.Tensor
		if me == a.root {
			for r := range n {
				ins = append(ins, vector(a.float, a.n, func(i int) int { return value(k, r, i) }))
			}
		}
		out := vector(a.float, a.n, func(int) int { return -1 })
		return []*Work{g.Scatter(ctx, out, ins, cohort.Rank(a.root))}, expect(out, a.n, func(i int) int { return value(k, me, i) })
	default:
		return []*Work{g.Barrier(ctx)}, nothing
	}
}

// TestMetamorphic runs the same random plan over every transport, with sub-groups, with operations in flight at the same
// time and with waits that are given up and taken up again; all must agree with a simple reference.
func TestMetamorphic(t *testing.T) {
	for seed := range uint64(4) {
		for _, transport := range transports {
			rng := rand.New(rand.NewPCG(seed, 9))
			size := 2 + rng.IntN(4)
			t.Run(fmt.Sprintf("%s/seed=%d/ranks=%d", transport, seed, size), func(t *testing.T) {
				subs := [][]int{{0, size - 1}, rng.Perm(size)[:1+rng.IntN(size)]}
				for _, s := range subs {
					slices.Sort(s)
				}
				actions := randomActions(rng, 40, size, subs)
				groups := newWorld(t, size, WithTransport(transport))
				ctx := ctxOf(t)
				must(t, each(size, func(r int) error { return runActions(ctx, groups[r], subs, actions, seed) }))
			})
		}
	}
}

func runActions(ctx context.Context, world *Group, subs [][]int, actions []action, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, uint64(world.Rank())))
	var made []*Group
	for _, ranks := range subs {
		g, err := world.NewGroup(ctx, ranksOf(ranks))
		if err != nil {
			return err
		}
		made = append(made, g)
	}
	var works []*Work
	var checks []func() error
	settle := func() error {
		for _, i := range rng.Perm(len(works)) {
			if rng.IntN(3) == 0 { // a wait that ends early changes nothing
				short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(100))*time.Microsecond)
				_ = works[i].Wait(short)
				cancel()
			}
			if err := works[i].Wait(ctx); err != nil {
				return err
			}
		}
		for _, check := range checks {
			if err := check(); err != nil {
				return err
			}
		}
		works, checks = nil, nil
		return nil
	}
	for k, a := range actions {
		g := world
		if a.sub >= 0 {
			if g = made[a.sub]; g == nil {
				continue
			}
		}
		w, check := a.begin(ctx, g, k)
		works, checks = append(works, w...), append(checks, check)
		if rng.IntN(3) == 0 {
			if err := settle(); err != nil {
				return err
			}
		}
	}
	return settle()
}
