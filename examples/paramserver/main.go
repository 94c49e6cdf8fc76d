// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command paramserver is a parameter server in Go for trainers in Python. It is rank 0 of the world and hosts its store:
//
//	go run ./examples/paramserver 'tcp://127.0.0.1:29500?rank=0&world_size=3' &
//	python3 examples/paramserver/trainer.py tcp://127.0.0.1:29500 1 3 &
//	python3 examples/paramserver/trainer.py tcp://127.0.0.1:29500 2 3
//
// The trainers fit a line to noisy points. They pull the parameters, compute gradients with torch, and push them; the
// server applies them as they come. The trainers know the server by a stub module, paramserver.py.
package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/examples/internal/launch"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// Server holds the parameters. Python reaches it through an RRef, by the stub class paramserver.Server.
type Server struct {
	mu     sync.Mutex
	params []float32
	rate   float32
	pushes int
}

// Pull returns a copy of the parameters.
func (s *Server) Pull() (*tensor.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tensor.Of(append([]float32(nil), s.params...))
}

// Push applies a gradient and returns how many there were.
func (s *Server) Push(grad *tensor.Tensor) (int, error) {
	g, err := tensor.Copy[float32](grad)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(g) != len(s.params) {
		return 0, rpc.Raise("ValueError", "a gradient of %d elements for %d parameters", len(g), len(s.params))
	}
	for i := range g {
		s.params[i] -= s.rate * g[i]
	}
	s.pushes++
	return s.pushes, nil
}

// newServer makes the object that rpc.remote asks for.
func newServer(args struct {
	Size int
	Rate float64 `rpc:"lr"`
},
) *Server {
	return &Server{params: make([]float32, args.Size), rate: float32(args.Rate)}
}

func main() { launch.Main(run) }

func run(ctx context.Context, url string, out io.Writer) error {
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	shared := &Server{params: make([]float32, 2), rate: 0.1}
	reg := rpc.NewRegistry().
		MustClass("paramserver.Server", (*Server)(nil)).
		MustHandle("paramserver.new_server", newServer).
		MustHandle("paramserver.shared", func(ctx context.Context) (*rpc.Ref[*Server], error) {
			return rpc.NewRef(rpc.AgentFrom(ctx), shared)
		})
	if _, err = w.RPC(ctx, "ps", rpc.WithHandlers(reg)); err != nil {
		return err
	}
	// A graceful shutdown waits until the trainers have finished and dropped their references.
	if err = w.Shutdown(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d pushes, slope %.2f, intercept %.2f\n", shared.pushes, shared.params[0], shared.params[1])
	return err
}
