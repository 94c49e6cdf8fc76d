// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

//go:embed zero.py
var zeroScript string

// shards says which rank steps which parameters, as ZeroRedundancyOptimizer does it: the largest first, each to the rank with least.
func shards(params []*autograd.Variable, size int) [][]*autograd.Variable {
	sorted := slices.SortedStableFunc(slices.Values(params),
		func(a, b *autograd.Variable) int { return cmp.Compare(b.Data().Numel(), a.Data().Numel()) })
	out, sizes := make([][]*autograd.Variable, size), make([]int, size)
	for _, p := range sorted {
		least := slices.Index(sizes, slices.Min(sizes))
		out[least] = append(out[least], p)
		sizes[least] += p.Data().Numel()
	}
	return out
}

// trainZero is a Go rank; it does what zero.py does.
func trainZero(ctx context.Context, url string, steps int) (string, error) {
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return "", err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return "", err
	}
	r := rand.New(rand.NewPCG(7, uint64(g.Rank())))
	net := nn.Sequential{nn.NewLinear(r, 64, 32), nn.Tanh, nn.NewLinear(r, 32, 16), nn.Tanh, nn.NewLinear(r, 16, 8)}
	model, err := ddp.New(ctx, g, net)
	if err != nil {
		return "", err
	}
	defer model.Close()
	all := shards(nn.Variables(net), g.Size())
	own, err := optim.New(optim.SGD{LR: 0.125, Momentum: 0.5}, all[g.Rank()])
	if err != nil {
		return "", err
	}
	for range steps {
		x, y := make([]float32, 4*64), make([]float32, 4*8)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		for i := range y {
			y[i] = float32(math.Sin(float64(x[i/8*64+i%8])))
		}
		for _, v := range nn.Variables(net) {
			v.ZeroGrad()
		}
		out := model.Forward(ctx, autograd.Constant(tensor.Must(tensor.From(x, 4, 64))))
		if err = autograd.MSE(out, autograd.Constant(tensor.Must(tensor.From(y, 4, 8))), autograd.ReduceMean).Backward(ctx); err != nil {
			return "", err
		}
		if err = own.Step(); err != nil {
			return "", err
		}
		var works []*group.Work
		for rank, params := range all {
			for _, p := range params {
				works = append(works, g.Broadcast(ctx, p.Data(), cohort.Rank(rank)))
			}
		}
		if err = group.WaitAll(ctx, works...); err != nil {
			return "", err
		}
	}
	digest, err := digestOf(net)
	if err != nil {
		return "", err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return "", err
	}
	return digest, w.Shutdown(ctx)
}

// TestShardedOptimizer: a Go rank has its share of an optimizer that is sharded over all ranks (ZeRO), and all end with
// the same parameters.
func TestShardedOptimizer(t *testing.T) {
	const size, steps = 3, 5
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, own := range []int{0, 2} {
			t.Run(fmt.Sprint("go=", own), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				port := strconv.Itoa(testkit.FreePort(t))
				var procs []*torchtest.Proc
				for rank := range size {
					if rank != own {
						procs = append(procs, torch.Start(t,
							torchtest.Script{
								Name: "zero.py", Source: zeroScript, Shared: torchtest.Optimizers,
								Args: []string{strconv.Itoa(steps)}, Env: map[string]string{
									"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size), "MASTER_ADDR": "127.0.0.1",
									"MASTER_PORT": port,
								},
							}))
					}
				}
				digest, err := trainZero(ctx, fmt.Sprintf("tcp://127.0.0.1:%s?rank=%d&world_size=%d", port, own, size), steps)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range procs {
					p.MustExit(t, time.Minute)
					if got := strings.TrimSpace(p.Stdout()); got != digest {
						t.Errorf("parameters %s, the Go rank's %s", got, digest)
					}
				}
			})
		}
	})
}
