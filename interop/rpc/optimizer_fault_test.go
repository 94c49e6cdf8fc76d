// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fault "github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// stepper is a Go worker with parameters that others step.
func stepper(t *testing.T, name string) (member, *layerOf) {
	t.Helper()
	m, l := goLayer(name, distautograd.WithLease(time.Second))
	if err := serveSteps(m, l, nil); err != nil {
		t.Fatal(err)
	}
	return m, l
}

func serveSteps(m member, l *layerOf, lock sync.Locker) error {
	m.reg.
		MustHandle("layers.fresh", initialWeight).
		MustHandle("layers.apply", func(ctx context.Context, w *rpc.Ref[*autograd.Variable],
			x *autograd.Variable,
		) (*autograd.Variable, error) {
			defer func() { _ = w.Close() }()
			v, err := w.LocalValue(ctx)
			if err != nil {
				return nil, err
			}
			return applyLayer(x, v), nil
		})
	return remote.Serve(m.reg, l.engine, lock)
}

// TestOptimizerFaults: a PyTorch worker with a parameter is killed, or is stopped and killed, or stays stopped, in the
// forward pass, the backward pass or the step of a Go trainer. The error names it, the other owner's contexts are
// cleaned up, and the two that are left go on.
func TestOptimizerFaults(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, when := range []string{"forward", "backward", "step"} {
			for _, how := range []string{"kill", "stop"} {
				t.Run(when+","+how, func(t *testing.T) {
					m0, l0 := stepper(t, "go0")
					m2, l2 := stepper(t, "go2")
					w := start(t, tr, settings{
						modules: map[string]string{"layers": layers}, shared: torchtest.Optimizers,
						tolerant: true,
					}, m0, torchWorker("py1", "import layers"), m2)
					ctx, a := testContext(t), w.agents["go0"]
					train := newTrainer(ctx, t, a, l0, []string{"py1", "go2"})
					if err := train.step(ctx, func(string) {}); err != nil {
						t.Fatal(err)
					}
					p := w.procs["py1"]
					var struck time.Time
					bounded, cancel := context.WithCancel(ctx)
					defer cancel()
					err := train.step(bounded, func(now string) {
						if now != when {
							return
						}
						p.Signal(syscall.SIGSTOP)
						struck = time.Now()
						if how == "kill" { // when the message is on its way
							time.AfterFunc(100*time.Millisecond, p.Kill)
						} else {
							time.AfterFunc(time.Second, cancel)
						}
					})
					var e *fault.Error
					switch {
					// a pass that is cancelled names who cancelled it
					case !errors.As(err, &e) || how == "kill" && e.Peer != "py1" ||
						when != "backward" && !strings.Contains(err.Error(), "py1"):
						t.Errorf("the error does not name py1: %v", err)
					case how == "kill" && !errors.Is(err, fault.PeerLost):
						t.Errorf("py1 was killed: %v", err)
					case how == "stop" && !errors.Is(err, context.Canceled):
						t.Errorf("py1 was stopped, and the context ended: %v", err)
					}
					if took := time.Since(struck); took > liveness {
						t.Errorf("it took %v", took)
					}
					p.Kill()
					l0.free(t)
					l2.free(t)
					rest := newTrainer(ctx, t, a, l0, []string{"go2"})
					if err := rest.step(ctx, func(string) {}); err != nil {
						t.Errorf("those that are left: %v", err)
					}
				})
			}
		}
	})
}

// trainer is a Go worker that trains parameters of others.
type trainer struct {
	a    *rpc.Agent
	l    *layerOf
	refs []*rpc.Ref[*autograd.Variable]
	opt  *remote.Optimizer
}

func newTrainer(ctx context.Context, t *testing.T, a *rpc.Agent, l *layerOf, owners []string) *trainer {
	t.Helper()
	tr := &trainer{a: a, l: l}
	for _, name := range owners {
		ref, err := rpc.Remote[*autograd.Variable](ctx, a, name, "layers.fresh", name)
		if err != nil {
			t.Fatal(err)
		}
		tr.refs = append(tr.refs, ref)
	}
	var err error
	if tr.opt, err = remote.New(ctx, a, optim.SGD{LR: 0.1}, tr.refs); err != nil {
		t.Fatal(err)
	}
	return tr
}

// step is one step of training. at is called before each part of it.
func (tr *trainer) step(ctx context.Context, at func(part string)) error {
	gctx, c, err := tr.l.engine.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	y := autograd.Constant(tensor.Must(tensor.From([]float64{1, -2, 0.5}, 3)))
	at("forward")
	for _, ref := range tr.refs {
		if y, err = rpc.Call[*autograd.Variable](gctx, tr.a, ref.Owner().Name, "layers.apply", ref, y); err != nil {
			return err
		}
	}
	at("backward")
	if err := c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
		return err
	}
	at("step")
	return tr.opt.Step(gctx, c)
}

// hanging is a PyTorch trainer whose worker go1 is killed in the middle of a step.
const hangingStep = `
import layers
from torch.distributed.optim import DistributedOptimizer
x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
refs = [rpc.remote(name, layers.fresh, args=(name,)) for name in ("go1", "go2")]
opt = DistributedOptimizer(torch.optim.SGD, refs, lr=0.1)
try:
    with dist_autograd.context() as cid:
        y = x
        for name, ref in zip(("go1", "go2"), refs):
            y = rpc.rpc_sync(name, layers.apply, args=(ref, y))
        dist_autograd.backward(cid, [y.sum()])
        opt.step(cid)
    print("succeeded", flush=True)
except Exception as e:
    print("raised " + str(e).replace("\n", " "), flush=True)
layers.until(lambda: layers.contexts() == 0, "contexts are left")
rest = [rpc.remote("go2", layers.fresh, args=("go2",))]
opt2 = DistributedOptimizer(torch.optim.SGD, rest, lr=0.1)
with dist_autograd.context() as cid:
    dist_autograd.backward(cid, [rpc.rpc_sync("go2", layers.apply, args=(rest[0], x)).sum()])
    opt2.step(cid)
print("rest", flush=True)
`

// TestDistributedOptimizerLosesGo: a Go worker dies while PyTorch's DistributedOptimizer waits for its step. PyTorch is told, the
// other Go worker's context is cleaned up, and the two go on.
func TestDistributedOptimizerLosesGo(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m2, l2 := stepper(t, "go2")
		var dies *goProcess
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, shared: torchtest.Optimizers, tolerant: true},
			torchWorker("py0", hangingStep),
			member{name: "go1", launch: func(rank, port int) {
				dies = startVictim(t, victim{Name: "go1", Rank: rank, Port: port, When: "step"})
			}}, m2)
		w.procs["py0"].Send(t, "go")
		dies.Expect(t, "slow")
		dies.Signal(syscall.SIGKILL)
		killed := time.Now()
		if line := w.procs["py0"].Line(t); !strings.HasPrefix(line, "raised ") {
			t.Errorf("PyTorch has %s", line)
		} else {
			t.Log(line)
		}
		if took := time.Since(killed); took > liveness {
			t.Errorf("it took %v", took)
		}
		w.procs["py0"].Expect(t, "rest")
		w.procs["py0"].Expect(t, "finished")
		l2.free(t)
	})
}

// blocked is a lock that reports that a caller wants it, and that no caller gets.
type blocked struct{ begun chan struct{} }

func (b blocked) Lock() {
	b.begun <- struct{}{}
	select {}
}

func (blocked) Unlock() {}

// TestOptimizerGivenUp: a trainer gives up making an optimizer at a PyTorch worker that is stopped. When that goes on, it makes one that
// is not wanted any more, and keeps no object for it.
func TestOptimizerGivenUp(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m0, l0 := stepper(t, "go0")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers + `
def owned():
    from torch.distributed.rpc import _rref_context_get_debug_info
    return int(_rref_context_get_debug_info()["num_owner_rrefs"])
`}, shared: torchtest.Optimizers, tolerant: true}, m0, torchWorker("py1", "import layers"))
		ctx, a, p := testContext(t), w.agents["go0"], w.procs["py1"]
		train := newTrainer(ctx, t, a, l0, []string{"py1"})
		owned := func(want int) {
			t.Helper()
			n := -1
			for end := time.Now().Add(2 * liveness); n != want && time.Now().Before(end); {
				var err error
				if n, err = rpc.Call[int](ctx, a, "py1", "layers.owned"); err != nil {
					t.Fatal(err)
				}
			}
			if n != want {
				t.Errorf("py1 has %d objects, want %d", n, want)
			}
		}
		owned(2) // the parameter and its optimizer
		for range 3 {
			p.Signal(syscall.SIGSTOP)
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			if _, err := remote.New(short, a, optim.SGD{LR: 0.1}, train.refs); !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "py1") {
				t.Errorf("an optimizer at a worker that is stopped: %v", err)
			}
			cancel()
			p.Signal(syscall.SIGCONT)
		}
		owned(2)
		if err := train.step(ctx, func(string) {}); err != nil {
			t.Error(err)
		}
		if err := errors.Join(train.opt.Close(), train.refs[0].Close()); err != nil {
			t.Error(err)
		}
		owned(0)
		w.run()
		w.stop()
	})
}
