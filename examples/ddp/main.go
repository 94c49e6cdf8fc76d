// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command ddp is a Go rank inside a PyTorch DistributedDataParallel job: it computes gradients of its own data in Go, takes
// part in DDP's collectives and ends with the same parameters as the PyTorch ranks, bit by bit. Those run train.py, which is
// an ordinary script:
//
//	export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=3
//	RANK=0 python3 examples/ddp/train.py &
//	RANK=1 python3 examples/ddp/train.py &
//	RANK=2 go run ./examples/ddp
//
// A rank may have a simulator, a data source or hardware behind it that only Go can reach.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

func main() {
	steps := 40
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "usage: ddp [STEPS]")
			os.Exit(2)
		}
		steps = n
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, "env://", steps, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	batchSize = 32
	// A power of two, so that the product with a gradient is exact and it does not matter whether a machine fuses it with
	// the addition.
	learningRate = 0.125
)

func run(ctx context.Context, url string, steps int, out io.Writer) error {
	w, err := world.Join(ctx, url, world.WithTimeout(2*time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1000, uint64(g.Rank()))) //nolint:gosec // training data
	net := nn.Sequential{nn.NewLinear(random, 3, 16), nn.Tanh, nn.NewLinear(random, 16, 1)}
	model, err := ddp.New(ctx, g, net)
	if err != nil {
		return err
	}
	defer model.Close()
	opt, err := optim.New(optim.SGD{LR: learningRate}, nn.Variables(net))
	if err != nil {
		return err
	}
	var first, last float64
	for step := range steps {
		x, y, failure := batch(random)
		if failure != nil {
			return failure
		}
		loss := autograd.MSE(model.Forward(ctx, x), y, autograd.ReduceMean)
		opt.ZeroGrad()
		if err = loss.Backward(ctx); err != nil {
			return err
		}
		if err = opt.Step(); err != nil {
			return err
		}
		if last = loss.Item(); step == 0 {
			first = last
		}
	}
	sum, err := digest(net)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "rank %d loss %.4f -> %.4f parameters %s\n", g.Rank(), first, last, sum); err != nil {
		return err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	return w.Shutdown(ctx)
}

// batch is this rank's data: points and the values of a function to learn.
func batch(random *rand.Rand) (x, y *autograd.Variable, err error) {
	points, values := make([]float32, 3*batchSize), make([]float32, batchSize)
	for i := range values {
		p := points[3*i:][:3]
		for j := range p {
			p[j] = 2*random.Float32() - 1
		}
		values[i] = p[0]*p[1] + p[2]
	}
	in, err := tensor.From(points, batchSize, 3)
	if err != nil {
		return nil, nil, err
	}
	want, err := tensor.From(values, batchSize, 1)
	return autograd.Constant(in), autograd.Constant(want), err
}

// digest is what train.py prints too.
func digest(m nn.Module) (string, error) {
	var flat []byte
	for _, v := range nn.Variables(m) {
		values, err := tensor.Copy[float32](v.Data())
		if err != nil {
			return "", err
		}
		for _, x := range values {
			flat = binary.LittleEndian.AppendUint32(flat, math.Float32bits(x))
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256(flat))[:16], nil
}
