// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command actors drives Python objects from Go. Python workers serve; Go creates environments on each of them, steps all
// at once and gathers the rewards:
//
//	go run ./examples/actors 'tcp://127.0.0.1:29500?rank=0&world_size=3' &
//	python3 examples/actors/worker.py tcp://127.0.0.1:29500 1 3 &
//	python3 examples/actors/worker.py tcp://127.0.0.1:29500 2 3
//
// Go is rank 0, which hosts the store, and stays until the others have left. PyTorch's rank 0 ends with its own rpc.shutdown,
// and another PyTorch worker that still reads the store in its own gets an error ("Connection reset by peer").
//
// The Python side needs no line of code for this: env.py is an ordinary module with an ordinary class.
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/examples/internal/launch"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// Step is what Env.step returns: a dict, by the names of the fields.
type Step struct {
	Observation *tensor.Tensor
	Reward      float64
	Done        bool
}

func main() { launch.Main(run) }

func run(ctx context.Context, url string, out io.Writer) error {
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	agent, err := w.RPC(ctx, "driver")
	if err != nil {
		return err
	}
	// One environment per Python worker. Remote returns at once; the objects are made side by side.
	var envs []*rpc.Ref[any]
	for _, worker := range agent.Workers() {
		if worker.Name == agent.Name() {
			continue
		}
		env, err := rpc.Remote[any](ctx, agent, worker.Name, "env.Env", worker.ID, rpc.Kw{"size": 3})
		if err != nil {
			return err
		}
		envs = append(envs, env)
	}
	total := 0.0
	for range 5 {
		steps := make([]*cohort.Future[Step], len(envs))
		for i, env := range envs {
			steps[i] = rpc.AsyncMethod[Step](ctx, env, "step", 1)
		}
		for i, f := range steps {
			s, err := f.Await(ctx)
			if err != nil {
				return fmt.Errorf("environment %d: %w", i, err)
			}
			total += s.Reward
		}
	}
	_, _ = fmt.Fprintf(out, "%d environments, total reward %.1f\n", len(envs), total)
	for _, env := range envs {
		_ = env.Close()
	}
	return w.Shutdown(ctx)
}
