// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/world"
)

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
	if _, err = fmt.Fprintf(a.Out, "trained a network together, %d steps: the mean loss fell from %.3f to %.3f\n", fitSteps, losses[0]/n, losses[1]/n); err != nil {
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
