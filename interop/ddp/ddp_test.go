// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ddp trains Go ranks and PyTorch ranks together: several buckets, unused parameters, accumulation, buffers, hooks,
// static graphs and uneven data.
package ddp

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

//go:embed rank.py
var script string

// branches is the model of the same name in rank.py.
type branches struct {
	left, right, never *nn.Linear
	goRight            bool
}

func (b *branches) Forward(x *autograd.Variable) *autograd.Variable {
	if b.goRight {
		return b.right.Forward(x)
	}
	return b.left.Forward(x)
}

func (b *branches) Params() []nn.Param {
	out := nn.Prefix("left", b.left.Params())
	out = append(out, nn.Prefix("right", b.right.Params())...)
	return append(out, nn.Prefix("never", b.never.Params())...)
}

// lookup is the model Lookup in rank.py.
type lookup struct {
	first, last *nn.Linear
	table       *nn.Embedding
}

func newLookup(r *rand.Rand) *lookup {
	l := &lookup{nn.NewLinear(r, 64, 8), nn.NewLinear(r, 8, 8), nn.NewEmbedding(r, 50, 8)}
	l.table.Sparse = true
	return l
}

func (l *lookup) Forward(x *autograd.Variable) *autograd.Variable {
	data, err := tensor.Copy[float32](x.Data())
	if err != nil {
		return autograd.Failed(err)
	}
	rows := x.Data().Dim(0)
	all, two := make([]int64, 0, 6*rows), make([]int64, 0, 2*rows)
	for i := range rows {
		for j := range 6 {
			id := int64(float32(math.Abs(float64(data[64*i+j])))*17) % 50
			if all = append(all, id); j < 2 {
				two = append(two, id)
			}
		}
	}
	look := func(ids []int64) *autograd.Variable {
		return l.table.Forward(autograd.Constant(tensor.Must(tensor.From(ids, rows, len(ids)/rows)))).Sum(1)
	}
	return l.last.Forward(l.first.Forward(x).Add(look(all)).Add(look(two)).Tanh())
}

func (l *lookup) Params() []nn.Param {
	out := append(nn.Prefix("first", l.first.Params()), nn.Prefix("table", l.table.Params())...)
	return append(out, nn.Prefix("last", l.last.Params())...)
}

// training is told when a Go rank has its model.
var training = func() {}

// train is a Go rank; it does what rank.py does. One whose mode ends with "-leave" goes without waiting for the others.
func train(ctx context.Context, url, mode string, steps int) (digest string, buckets [][]string, err error) {
	mode, leaves := strings.CutSuffix(mode, "-leave")
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return "", nil, err
	}
	r := rand.New(rand.NewPCG(5, uint64(g.Rank())))
	var net nn.Module
	forked := &branches{nn.NewLinear(r, 64, 8), nn.NewLinear(r, 64, 8), nn.NewLinear(r, 64, 8), false}
	var opts []ddp.Option
	switch mode {
	case "unused":
		net, opts = forked, []ddp.Option{ddp.WithFindUnused()}
	case "tied":
		shared := nn.NewLinear(r, 64, 64)
		net = nn.Sequential{shared, nn.Tanh, shared, nn.Tanh, nn.NewLinear(r, 64, 8)}
	case "buffers":
		net = nn.Sequential{nn.NewLinear(r, 64, 16), nn.NewBatchNorm(16), nn.Tanh, nn.NewLinear(r, 16, 8)}
	case "sparse", "accumulate-sparse", "join-sparse":
		net, opts = newLookup(r), []ddp.Option{ddp.WithBuckets(ddp.DefaultFirstBucket, 1000)}
	case "static":
		net, opts = forked, []ddp.Option{ddp.WithStaticGraph(), ddp.WithBuckets(ddp.DefaultFirstBucket, 1000)}
	default:
		net = nn.Sequential{nn.NewLinear(r, 64, 512), nn.Tanh, nn.NewLinear(r, 512, 512), nn.Tanh, nn.NewLinear(r, 512, 8)}
		opts = []ddp.Option{ddp.WithBuckets(ddp.DefaultFirstBucket, 1<<20)}
	}
	if mode == "fp16" {
		opts = append(opts, ddp.WithCommHook(ddp.FP16))
	}
	model, err := ddp.New(ctx, g, net, opts...)
	if err != nil {
		return "", nil, err
	}
	defer model.Close()
	training()
	opt, err := optim.New(optim.SGD{LR: 0.125}, nn.Variables(net))
	if err != nil {
		return "", nil, err
	}
	if !strings.HasPrefix(mode, "join") {
		err = loop(ctx, model, opt, forked, r, mode, steps)
	} else { // each rank has another number of steps
		var opts []ddp.JoinOption
		switch mode {
		case "join-active":
			opts = append(opts, ddp.DivideByActive())
		case "join-throw":
			opts = append(opts, ddp.FailUneven())
		}
		err = model.Join(ctx, func() error { return loop(ctx, model, opt, forked, r, mode, steps+int(g.Rank())) }, opts...)
		if mode == "join-throw" { // rank 0 has the fewest, and all stop where it does
			if !errors.Is(err, ddp.ErrUneven) || strings.Contains(err.Error(), "rank 0 exhausted") != (g.Rank() == 0) {
				return "", nil, fmt.Errorf("rank %d: Join ended with %w", g.Rank(), err)
			}
			err = nil
		}
	}
	if err != nil || leaves {
		return "", nil, err
	}
	if digest, err = digestOf(net); err != nil {
		return "", nil, err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return "", nil, err
	}
	return digest, model.Buckets(), w.Shutdown(ctx)
}

// digestOf is a digest of the parameters of a model.
func digestOf(net nn.Module) (string, error) {
	h := sha256.New()
	for _, v := range nn.Variables(net) {
		data, err := tensor.Copy[float32](v.Data())
		if err != nil {
			return "", err
		}
		for _, x := range data {
			_ = binary.Write(h, binary.LittleEndian, x)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func loop(ctx context.Context, model *ddp.Model, opt *optim.Optimizer, forked *branches, r *rand.Rand, mode string, steps int) error {
	for step := range steps {
		opt.ZeroGrad()
		micro := 1
		if mode == "accumulate" || mode == "buffers" || mode == "accumulate-sparse" {
			micro = 3
		}
		for k := range micro {
			x, y := make([]float32, 4*64), make([]float32, 4*8)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			for i := range y {
				y[i] = float32(math.Sin(float64(x[i/8*64+i%8])))
			}
			forked.goRight = mode == "unused" && (int(model.Group().Rank())+step)%3 == 0
			model.SetSync(k == micro-1)
			out := model.Forward(ctx, autograd.Constant(tensor.Must(tensor.From(x, 4, 64))))
			if err := autograd.MSE(out, autograd.Constant(tensor.Must(tensor.From(y, 4, 8))),
				autograd.ReduceMean).Backward(ctx); err != nil {
				return err
			}
		}
		if err := opt.Step(); err != nil {
			return err
		}
	}
	return nil
}

// TestTogether has a Go rank in every position; all ranks end with the same parameters, bit by bit.
func TestTogether(t *testing.T) {
	const size, steps = 3, 5
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for i, mode := range []string{
			"plain", "unused", "accumulate", "tied", "buffers", "fp16", "static", "sparse",
			"accumulate-sparse", "join", "join-active", "join-throw", "join-sparse",
		} {
			positions := []int{0, 2}
			if torch != torchtest.V113 && mode != "join-throw" && mode != "join-sparse" { // the position matters to Go, not to the version
				positions = positions[i%2:][:1]
				if mode == "fp16" {
					continue // whether gloo sums halves depends on how PyTorch was built
				}
			}
			for _, own := range positions {
				t.Run(fmt.Sprintf("%s,go=%d", mode, own), func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
					defer cancel()
					port := strconv.Itoa(testkit.FreePort(t))
					var procs []*torchtest.Proc
					for rank := range size {
						if rank != own {
							procs = append(procs,
								torch.Start(t, torchtest.Script{
									Name: "rank.py", Source: script, Shared: torchtest.Optimizers,
									Args: []string{mode, strconv.Itoa(steps)}, Env: map[string]string{
										"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size), "MASTER_ADDR": "127.0.0.1",
										"MASTER_PORT": port,
									},
								}))
						}
					}
					digest, buckets, err := train(ctx, fmt.Sprintf("tcp://127.0.0.1:%s?rank=%d&world_size=%d", port, own, size),
						mode, steps)
					if mode == "join-sparse" && torch == torchtest.V113 {
						// Its ranks that have joined send empty gradients with indices in all dimensions. A job of its own aborts.
						if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "indices in some dimensions") {
							t.Fatal(err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					for _, p := range procs {
						p.MustExit(t, time.Minute)
						if got := strings.TrimSpace(p.Stdout()); got != digest {
							t.Errorf("parameters %s, the Go rank's %s", got, digest)
						}
					}
					if (mode == "plain" || mode == "accumulate") && len(buckets) < 2 {
						t.Errorf("buckets %v", buckets)
					}
				})
			}
		}
	})
}
