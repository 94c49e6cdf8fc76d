// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

func (a *app) trainCommand() *cobra.Command {
	var peer, only string
	var dur time.Duration
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Measure matrix products and training steps",
		Long: strings.TrimSpace(`
Measure the parts of training, and print one JSON object per value, with the names
of bench/peers/autograd/torch_train.py and torch_dist_autograd.py:

  matmul1024.tN    float32 product of two 1024x1024 matrices on N threads
  step784          a step of a 784-256-10 network with a batch of 64, on one thread
  hop1, chain8     forward, backward and clean-up of a tiny graph over 1 and 8 nested calls between
                   two processes: in FAST mode, as in PyTorch, and in SMART mode (peer PEER-smart)
  ddp100MB         a data-parallel step of two processes over TCP, one thread each, with
                   100 MB of gradients in buckets of 25 MB`),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cases, err := regexp.Compile(only)
			if err != nil || dur <= 0 {
				return command.Usage(fmt.Errorf("--only %s, --dur %s: want a regular expression and some time", only, dur))
			}
			m := &meter{out: a.Out, group: "autograd", peer: peer, dur: dur, only: cases}
			return command.Explain(cmd.Context(), a.measureTrain(cmd.Context(), m))
		},
	}
	cmd.Flags().StringVar(&peer, "peer", "cohort", "the name in the column peer")
	cmd.Flags().StringVar(&only, "only", "", "run only the cases whose name matches this regular expression")
	cmd.Flags().DurationVar(&dur, "dur", 2*time.Second, "time per case")
	return cmd
}

func (a *app) measureTrain(ctx context.Context, m *meter) error {
	for _, threads := range []int{1, 2} {
		if name := fmt.Sprintf("matmul1024.t%d", threads); m.wanted(name) {
			m.emit(name, productRate(threads, m.dur), "GFLOP/s")
		}
	}
	if m.wanted("step784") {
		if err := measureStep(ctx, m); err != nil {
			return err
		}
	}
	if m.wanted("hop1") || m.wanted("chain8") {
		if err := a.startHops(ctx, m); err != nil {
			return err
		}
	}
	if m.wanted("ddp100MB") {
		return a.startDDP(ctx, m.peer, m.dur)
	}
	return nil
}

// productRate is the median speed of a product.
func productRate(threads int, dur time.Duration) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	const n = 1024
	x, y, z := make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)
	for i := range x {
		x[i], y[i] = float32(i%13)/13, float32(i%7)/7
	}
	took := timed(dur, func() { blas.Mul(blas.Dense(z, n, n), blas.Dense(x, n, n), blas.Dense(y, n, n), false) })
	return 2 * n * n * n / took.Seconds() / 1e9
}

// timed returns the median duration of f, after one call to warm up.
func timed(dur time.Duration, f func()) time.Duration {
	f()
	var took []time.Duration
	for start := time.Now(); len(took) < 3 || time.Since(start) < dur; {
		begin := time.Now()
		f()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

func measureStep(ctx context.Context, m *meter) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // weights and data
	net := nn.Sequential{nn.NewLinear(r, 784, 256), nn.ReLU, nn.NewLinear(r, 256, 10)}
	step, err := trainStep(ctx, r, net, net.Forward, 64, 784, 10)
	if err != nil {
		return err
	}
	took := timed(m.dur, func() { err = step() })
	if err != nil {
		return err
	}
	m.emit("step784.p50", micros(took), "us")
	return nil
}

// trainStep returns a function that does one step with fixed random data.
func trainStep(ctx context.Context, r *rand.Rand, net nn.Module, forward func(*autograd.Variable) *autograd.Variable,
	batch, inputs, classes int,
) (func() error, error) {
	opt, err := optim.New(optim.SGD{LR: 0.01}, nn.Variables(net))
	if err != nil {
		return nil, err
	}
	x, y := make([]float32, batch*inputs), make([]int64, batch)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for i := range y {
		y[i] = r.Int64N(int64(classes))
	}
	in, err := tensor.From(x, batch, inputs)
	if err != nil {
		return nil, err
	}
	want, err := tensor.From(y)
	if err != nil {
		return nil, err
	}
	return func() error {
		opt.ZeroGrad()
		if err := autograd.CrossEntropy(forward(autograd.Constant(in)), want, autograd.ReduceMean).Backward(ctx); err != nil {
			return err
		}
		return opt.Step()
	}, nil
}

// startDDP starts two ranks.
func (a *app) startDDP(ctx context.Context, peer string, dur time.Duration) error {
	return a.runRanks(ctx, 2, []string{"GOMAXPROCS=1"}, func(rank int, store string) []string {
		return []string{"train-rank", "--store", store, "--rank", strconv.Itoa(rank), "--peer", peer, "--dur", dur.String()}
	})
}

// trainRankCommand is one rank of the data-parallel case.
func (a *app) trainRankCommand() *cobra.Command {
	var addr, peer string
	var rank int
	var dur time.Duration
	cmd := &cobra.Command{
		Use: "train-rank", Hidden: true, Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return trainRank(cmd.Context(), &meter{out: a.Out, group: "autograd", peer: peer, dur: dur}, addr, rank)
		},
	}
	cmd.Flags().StringVar(&addr, "store", "", "address of the store")
	cmd.Flags().StringVar(&peer, "peer", "cohort", "the name in the column peer")
	cmd.Flags().IntVar(&rank, "rank", 0, "rank of this process")
	cmd.Flags().DurationVar(&dur, "dur", 2*time.Second, "time of the measurement")
	return cmd
}

func trainRank(ctx context.Context, m *meter, addr string, rank int) error {
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	g, err := group.New(ctx, client, cohort.Rank(rank), 2, group.WithTransport(group.TCP), group.WithPeers(group.OnlyGo))
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // weights and data
	var net nn.Sequential
	for range 6 { // 6 * 2048 * 2049 * 4 bytes
		net = append(net, nn.NewLinear(r, 2048, 2048), nn.ReLU)
	}
	model, err := ddp.New(ctx, g, net)
	if err != nil {
		return err
	}
	defer model.Close()
	step, err := trainStep(ctx, r, net, func(x *autograd.Variable) *autograd.Variable { return model.Forward(ctx, x) }, 16, 2048, 2048)
	if err != nil {
		return err
	}
	for range 2 { // the second has the final buckets
		if err := step(); err != nil {
			return err
		}
	}
	// Both ranks must take the same number of steps: rank 0 says how many.
	begin := time.Now()
	if err := step(); err != nil {
		return err
	}
	count := []int64{max(5, int64(m.dur/max(time.Since(begin), 1)))}
	if err := group.BroadcastSlice(ctx, g, count, 0); err != nil {
		return err
	}
	took := make([]time.Duration, count[0])
	for i := range took {
		begin := time.Now()
		if err := step(); err != nil {
			return err
		}
		took[i] = time.Since(begin)
	}
	if rank == 0 {
		slices.Sort(took)
		m.emit("ddp100MB.p50", micros(took[len(took)/2]), "us")
	}
	return g.Barrier(ctx).Wait(ctx)
}
