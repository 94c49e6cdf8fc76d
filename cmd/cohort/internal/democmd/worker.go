// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/childproc"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// message is one line from a worker to the demonstration.
type message struct {
	Rank  int    `json:"rank"`
	Act   int    `json:"act"`
	Ended bool   `json:"ended"`
	Text  string `json:"text,omitempty"`
	Error string `json:"error,omitempty"`
}

// NewWorker returns the command that "cohort demo" starts; people do not call it.
func NewWorker(shared *command.App) *cobra.Command {
	a := &app{shared}
	var rank int
	var scene, python, script string
	cmd := &cobra.Command{
		Use:    "demo-worker",
		Hidden: true,
		Args:   command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if scene != "" {
				return a.playScene(cmd.Context(), scene, python, script)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			childproc.CancelAtEOF(a.In, cancel)
			return playAll(ctx, rank, json.NewEncoder(a.Out))
		},
	}
	cmd.Flags().IntVar(&rank, "rank", 0, "the number of this worker")
	cmd.Flags().StringVar(&scene, "scene", "", "what to play under the launcher")
	cmd.Flags().StringVar(&python, "python", "", "the Python of the last rank")
	cmd.Flags().StringVar(&script, "script", "", "its script")
	return cmd
}

func playAll(ctx context.Context, rank int, out *json.Encoder) error {
	var s stage
	defer func() {
		if s.world != nil {
			_ = s.world.Close()
		}
	}()
	for i, act := range acts() {
		if err := out.Encode(message{Rank: rank, Act: i}); err != nil {
			return err
		}
		text, err := act.play(ctx, &s)
		report := message{Rank: rank, Act: i, Ended: true, Text: text}
		if err != nil {
			report.Error = err.Error()
		}
		if told := out.Encode(report); told != nil {
			return told
		}
		if err != nil {
			return command.Exit(command.ExitFailure)
		}
	}
	return s.world.Shutdown(ctx)
}

// train lets the ranks fit a network to a curve.
func train(ctx context.Context, s *stage) (string, error) {
	g, err := group.New(ctx, s.world.Store(), s.world.Rank(), s.world.Size(), group.WithName("train"))
	if err != nil {
		return "", err
	}
	defer func() { _ = g.Close() }()
	start := time.Now()
	first, last, err := fit(ctx, g)
	if err != nil {
		return "", err
	}
	took := time.Since(start)
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("trained a network together, %d steps in %d ms: the loss fell from %.3f to %.3f", fitSteps,
		took.Milliseconds(), first, last), nil
}

// fitSteps is how many steps fit takes.
const fitSteps = 200

// fit fits a small network to a curve, data-parallel: every rank has points of its own, and all end with the same network. It
// returns this rank's first and last loss. demo_rank.py does the same.
func fit(ctx context.Context, g *group.Group) (first, last float64, err error) {
	const batch, hidden = 32, 16
	random := rand.New(rand.NewPCG(1, uint64(g.Rank()))) //nolint:gosec // weights and points
	net := nn.Sequential{nn.NewLinear(random, 1, hidden), nn.Tanh, nn.NewLinear(random, hidden, 1)}
	model, err := ddp.New(ctx, g, net)
	if err != nil {
		return 0, 0, err
	}
	defer model.Close()
	opt, err := optim.New(optim.Adam{LR: 0.03}, nn.Variables(net))
	if err != nil {
		return 0, 0, err
	}
	for step := range fitSteps {
		xs, ys := make([]float32, batch), make([]float32, batch)
		for i := range xs {
			x := 2*random.Float64() - 1
			xs[i], ys[i] = float32(x), float32(math.Sin(3*x))
		}
		x, y := tensor.Must(tensor.From(xs, batch, 1)), tensor.Must(tensor.From(ys, batch, 1))
		opt.ZeroGrad()
		loss := autograd.MSE(model.Forward(ctx, autograd.Constant(x)), autograd.Constant(y), autograd.ReduceMean)
		if err := loss.Backward(ctx); err != nil {
			return 0, 0, err
		}
		if err := opt.Step(); err != nil {
			return 0, 0, err
		}
		if last = loss.Item(); step == 0 {
			first = last
		}
	}
	if last > first/2 {
		return first, last, fmt.Errorf("the loss went from %.3f to %.3f only", first, last)
	}
	return first, last, nil
}

// sceneSteps is how many all-reduces a job of a scene makes, sceneTrouble after how many it gets into trouble.
const sceneSteps, sceneTrouble = 5, 3

// playScene is a rank of a job under the launcher. Where python is given, the last rank is a script of PyTorch. "cohort why" shows
// the name of this file to the user who watches the demonstration.
func (a *app) playScene(ctx context.Context, scene, python, script string) error {
	rank, size := a.Getenv(rendezvous.EnvRank), a.Getenv(rendezvous.EnvWorldSize)
	last, err := strconv.Atoi(size)
	if err != nil {
		return command.Usage(fmt.Errorf("demo-worker: %s is %q: only \"cohort demo\" starts this", rendezvous.EnvWorldSize, size))
	}
	last--
	if python != "" && rank == strconv.Itoa(last) {
		return becomePython(python, script)
	}
	w, err := world.Join(ctx, "env://")
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := group.New(ctx, w.Store(), w.Rank(), w.Size())
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	if scene == sceneHang {
		return a.trainAndHang(ctx, g)
	}
	for step := 1; step <= sceneSteps; step++ {
		if err := a.trainStep(ctx, g, step); err != nil {
			return err
		}
		if scene == sceneKill && step == sceneTrouble && int(w.Rank()) == last && a.Getenv(rendezvous.EnvRestartCount) == "0" {
			return exitNow()
		}
	}
	return g.Barrier(ctx).Wait(ctx)
}

// trainAndHang trains a network with all ranks and adds up their losses. Then the last rank does not come to the next sum.
func (a *app) trainAndHang(ctx context.Context, g *group.Group) error {
	first, last, err := fit(ctx, g)
	if err != nil {
		return err
	}
	losses := []float32{float32(first), float32(last)}
	if err = group.AllReduceSlice(ctx, g, losses, group.Sum); err != nil {
		return err
	}
	n := float32(g.Size())
	if _, err = fmt.Fprintf(a.Out, "trained a network together, %d steps: the mean loss fell from %.3f to %.3f\n", fitSteps,
		losses[0]/n, losses[1]/n); err != nil {
		return err
	}
	if int(g.Rank()) == g.Size()-1 {
		a.loadBatch(ctx)
	}
	return group.AllReduceSlice(ctx, g, losses, group.Sum)
}

// trainStep adds up a vector over all ranks.
func (a *app) trainStep(ctx context.Context, g *group.Group, step int) error {
	gradient := []float32{float32(g.Rank() + 1), 0, 0, 0}
	for i := range gradient {
		gradient[i] = gradient[0]
	}
	if err := group.AllReduceSlice(ctx, g, gradient, group.Sum); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "step %d: the sum is %g\n", step, gradient[0])
	return err
}

// loadBatch hangs.
func (a *app) loadBatch(ctx context.Context) {
	_, _ = fmt.Fprintln(a.Out, hangText+", and that takes for ever")
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Minute):
	}
}

// exitNow is what the kernel does to a process when memory runs out.
func exitNow() error {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {}
}
