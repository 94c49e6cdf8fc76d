// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command chars trains a small transformer to continue a text, character by character, and lets it write. The transformer is cut
// into three stages, each at its own worker:
//
//	go run ./examples/chars
//
// The text is the Apache License. Each stage has a block of causal self-attention; the model is in model.go. A batch goes through
// the stages in four parts, so that all stages work at once; one backward pass over all workers finds the gradients, and every
// worker changes its own parameters. The three workers are in this process, over TCP; examples/internal/stages starts them.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/examples/internal/curve"
	"github.com/cohort-dist/cohort/examples/internal/stages"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed text.txt
var text string

func main() {
	steps := flag.Int("steps", 600, "training steps")
	chars := flag.Int("write", 200, "characters that it writes at the end")
	save := flag.String("save", "", "write the parameters to this safetensors file, which PyTorch users can open")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	_, err := run(ctx, *steps, *chars, *save, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	batchSize = 8
	length    = 48 // characters that the model sees
	parts     = 4
)

// run trains, reports and returns the losses of all steps.
func run(ctx context.Context, steps, chars int, save string, out io.Writer) ([]float64, error) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // initial weights and samples
	letters := newAlphabet(text)
	model := newModel(random, letters.size(), length)
	net, err := stages.Start(ctx, st, optim.AdamW{LR: 4e-3, WeightDecay: 0.01}, model...)
	if err != nil {
		return nil, err
	}
	defer net.Close()
	ids := letters.encode(text)
	losses, err := net.Train(ctx, steps, parts, out, func() (*tensor.Tensor, *tensor.Tensor, error) { return sample(random, ids) })
	if err != nil {
		return nil, err
	}
	written, err := write(ctx, random, net, letters, "You may ", chars)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(out, "\n%s\n%s\n", curve.Draw(losses), written); err != nil {
		return nil, err
	}
	if save != "" {
		return losses, nn.Save(save, model) // all three stages are in this process
	}
	return losses, nil
}

// sample takes random pieces of the text, and the characters that follow each of theirs.
func sample(random *rand.Rand, ids []int64) (inputs, classes *tensor.Tensor, err error) {
	x, y := make([]int64, 0, batchSize*length), make([]int64, 0, batchSize*length)
	for range batchSize {
		at := random.IntN(len(ids) - length - 1)
		x, y = append(x, ids[at:at+length]...), append(y, ids[at+1:at+length+1]...)
	}
	inputs, err1 := tensor.From(x, batchSize, length)
	classes, err2 := tensor.From(y)
	return inputs, classes, errors.Join(err1, err2)
}

// write lets the model continue a text.
func write(ctx context.Context, random *rand.Rand, net *stages.Pipeline, letters *alphabet, start string, n int) (string, error) {
	ids := letters.encode(start)
	begin := time.Now()
	for range n {
		window := append([]int64(nil), ids[max(0, len(ids)-length):]...)
		in, err := tensor.From(window, 1, len(window))
		if err != nil {
			return "", err
		}
		y, err := net.Forward(ctx, autograd.Constant(in))
		if err != nil {
			return "", err
		}
		p := y.Select(0, -1).Scale(1 / 0.6).Softmax(0)
		if p.Err() != nil {
			return "", p.Err()
		}
		chances, err := tensor.Copy[float32](p.Data())
		if err != nil {
			return "", err
		}
		ids = append(ids, choose(random.Float64(), chances))
	}
	rate := float64(n) / math.Max(time.Since(begin).Seconds(), 1e-9)
	return fmt.Sprintf("%s\n(%.0f characters a second)", letters.decode(ids), rate), nil
}

func choose(at float64, chances []float32) int64 {
	for i, c := range chances {
		if at -= float64(c); at < 0 {
			return int64(i)
		}
	}
	return int64(len(chances) - 1)
}
