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
// A rank may have a simulator, a data source or hardware behind it that only Go can reach. ddp.go is what DDP exchanges,
// model.go the model.
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

	"github.com/cohort-dist/cohort"
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
	w, err := cohort.Join(ctx, url, cohort.WithTimeout(2*time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1000, uint64(g.Rank()))) //nolint:gosec // training data
	model := newModel(3, 16, random)
	ddp, err := newDDP(ctx, g, model.parameters())
	if err != nil {
		return err
	}
	var first, last float64
	for step := range steps {
		if err := ddp.beforeForward(ctx); err != nil {
			return err
		}
		xs, ys := batch(random)
		last = model.backward(xs, ys)
		if step == 0 {
			first = last
		}
		if err := ddp.reduceGradients(ctx); err != nil {
			return err
		}
		for _, p := range model.parameters() {
			for i := range p.values {
				p.values[i] -= learningRate * p.grad[i]
			}
		}
	}
	if _, err := fmt.Fprintf(out, "rank %d loss %.4f -> %.4f parameters %s\n", g.Rank(), first, last, digest(model.parameters())); err != nil {
		return err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	return w.Shutdown(ctx)
}

// batch is this rank's data: points and the values of a function to learn.
func batch(random *rand.Rand) (xs [][]float32, ys []float32) {
	for range batchSize {
		x := []float32{2*random.Float32() - 1, 2*random.Float32() - 1, 2*random.Float32() - 1}
		xs, ys = append(xs, x), append(ys, x[0]*x[1]+x[2])
	}
	return xs, ys
}

// digest is what train.py prints too.
func digest(params []*parameter) string {
	var flat []byte
	for _, p := range params {
		for _, v := range p.values {
			flat = binary.LittleEndian.AppendUint32(flat, math.Float32bits(v))
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256(flat))[:16]
}
