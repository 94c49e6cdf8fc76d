// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command chars trains a small transformer to continue a text, character by character, and lets it write:
//
//	go run ./examples/chars
//
// The text is the Apache License. The model has two blocks of causal self-attention; everything is in model.go.
package main

import (
	"context"
	_ "embed"
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
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed text.txt
var text string

func main() {
	steps := flag.Int("steps", 600, "training steps")
	save := flag.String("save", "", "write the parameters to this safetensors file, which PyTorch users can open")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	_, err := run(ctx, *steps, *save, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	batchSize = 8
	length    = 48 // characters that the model sees
)

// run trains, reports and returns the losses of all steps.
func run(ctx context.Context, steps int, save string, out io.Writer) ([]float64, error) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // initial weights and samples
	letters := newAlphabet(text)
	net := newModel(random, letters.size(), length)
	params := nn.Variables(net)
	opt, err := optim.New(optim.AdamW{LR: 3e-3, WeightDecay: 0.01}, params)
	if err != nil {
		return nil, err
	}
	rate := optim.SequentialLR([]optim.Schedule{optim.LinearLR(3e-3, 0.1, 1, 20), optim.CosineAnnealingLR(3e-3, max(steps-20, 1), 3e-4)}, []int{20})
	ids := letters.encode(text)
	var losses []float64
	for step := range steps {
		x, y, failure := sample(random, ids)
		if failure != nil {
			return nil, failure
		}
		opt.ZeroGrad()
		opt.SetLR(rate(step))
		loss := autograd.CrossEntropy(net.Forward(x).Reshape(-1, letters.size()), y, autograd.ReduceMean)
		if err = loss.Backward(ctx); err != nil {
			return nil, err
		}
		if _, err = optim.ClipGradNorm(params, 1, 2); err != nil {
			return nil, err
		}
		if err = opt.Step(); err != nil {
			return nil, err
		}
		losses = append(losses, loss.Item())
		if (step+1)%50 == 0 {
			recent := losses[len(losses)-50:]
			mean := 0.0
			for _, l := range recent {
				mean += l / float64(len(recent))
			}
			if _, err = fmt.Fprintf(out, "step %4d/%d  loss %.3f\n", step+1, steps, mean); err != nil {
				return nil, err
			}
		}
	}
	written, err := write(random, net, letters, "You may ", 200)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(out, "\n%s\n%s\n", curve.Draw(losses), written); err != nil {
		return nil, err
	}
	if save != "" {
		return losses, nn.Save(save, net)
	}
	return losses, nil
}

// sample takes random pieces of the text, and the characters that follow each of theirs.
func sample(random *rand.Rand, ids []int64) (*autograd.Variable, *tensor.Tensor, error) {
	x, y := make([]int64, 0, batchSize*length), make([]int64, 0, batchSize*length)
	for range batchSize {
		at := random.IntN(len(ids) - length - 1)
		x, y = append(x, ids[at:at+length]...), append(y, ids[at+1:at+length+1]...)
	}
	in, err := tensor.From(x, batchSize, length)
	if err != nil {
		return nil, nil, err
	}
	want, err := tensor.From(y)
	return autograd.Constant(in), want, err
}

// write lets the model continue a text.
func write(random *rand.Rand, net nn.Module, letters *alphabet, start string, n int) (string, error) {
	ids := letters.encode(start)
	begin := time.Now()
	for range n {
		window := append([]int64(nil), ids[max(0, len(ids)-length):]...)
		in, err := tensor.From(window, 1, len(window))
		if err != nil {
			return "", err
		}
		p := net.Forward(autograd.NoGrad(in)).Select(1, -1).Reshape(-1).Scale(1 / 0.6).Softmax(0)
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
