// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	fault "github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// cutting is added to the module layers: a link of a chain that cuts the connections of its process at a moment of the chain: when the
// next worker has answered, when a gradient comes for that answer, or when one comes back from that worker.
const cutting = `
def cut_all(ports):
    import pycut
    for port in [0] + ports:
        pycut.cut(port)
class Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ports):
        ctx.ports = ports
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        cut_all(ctx.ports)
        return g, None
def cutting(when, ports, path, x):
    if when == "gradient back": x = Cut.apply(x, ports)
    y = rpc.rpc_sync(path[0], forward, args=(path[1:], layer(x, weight())))
    if when == "gradient": y = Cut.apply(y, ports)
    if when == "answer": cut_all(ports)
    return y
`

// TestAutogradCut cuts the connections of a PyTorch worker between two Go workers, at each message of a pass: those that others have opened
// to it, or its own as well. The worker that has begun the chain is told within a second and not by its timeout, no Go worker keeps a
// context, and where PyTorch's own connections are left the three go on.
func TestAutogradCut(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, when := range []string{"answer", "gradient", "gradient back"} {
			for _, every := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,own=%v", when, every), func(t *testing.T) {
					m0, l0 := goLayer("go0", distautograd.WithLease(time.Second))
					m2, l2 := goLayer("go2", distautograd.WithLease(time.Second))
					w := start(t, tr, settings{
						modules:  map[string]string{"pycut": pycut, "layers": layers + cutting},
						tolerant: true,
					}, m0, torchWorker("py1", "import layers"), m2)
					ctx, a := testContext(t), w.agents["go0"]
					l0.chain(ctx, t, a, []string{"py1", "go2"}) // so that all are connected
					ports := []int{}
					if every {
						for _, name := range []string{"go0", "go2"} {
							at, err := netip.ParseAddrPort(w.agents[name].Addr())
							if err != nil {
								t.Fatal(err)
							}
							ports = append(ports, int(at.Port()))
						}
					}
					gctx, c, err := l0.engine.Open(ctx)
					if err != nil {
						t.Fatal(err)
					}
					x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, -2, 0.5}, 3)))
					began := time.Now()
					y, err := rpc.Call[*autograd.Variable](gctx, a, "py1", "layers.cutting", when, ports, []string{"go2"}, x)
					if err == nil {
						began = time.Now()
						err = c.Backward(gctx, []*autograd.Variable{y.Sum()})
					}
					var e *fault.Error
					if !errors.Is(err, fault.PeerLost) || !errors.As(err, &e) || e.Peer != "py1" {
						t.Errorf("the chain: %v", err)
					}
					if took := time.Since(began); took > liveness {
						t.Errorf("it took %v: %v", took, err)
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
					l0.free(t)
					l2.free(t)
					if !every {
						l0.chain(ctx, t, a, []string{"py1", "go2"})
						w.freed(ctx, a)
					}
				})
			}
		}
	})
}

// TestAutogradStopped stops a PyTorch worker in the middle of a pass, until the pass has ended by its deadline, and
// then lets it go on: what it still sends is dropped, and the next passes are right.
func TestAutogradStopped(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m0, l0 := goLayer("go0", distautograd.WithLease(time.Second))
		m2, l2 := goLayer("go2", distautograd.WithLease(time.Second))
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, m0,
			torchWorker("py1", "import layers"), m2)
		ctx, a := testContext(t), w.agents["go0"]
		p := w.procs["py1"]
		for _, path := range [][]string{{"py1", "go2"}, {"go2", "py1"}, {"go2", "py1", "go2"}} {
			gctx, c, err := l0.engine.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, -2, 0.5}, 3)))
			y, err := rpc.Call[*autograd.Variable](gctx, a, path[0], "layers.forward", path[1:], x)
			if err != nil {
				t.Fatal(err)
			}
			p.Signal(syscall.SIGSTOP)
			short, cancel := context.WithTimeout(gctx, time.Second)
			err = c.Backward(short, []*autograd.Variable{y.Sum()})
			cancel()
			// It names whose gradients it waits for, or those that the next worker waits for, if that one has reported it first.
			if !errors.Is(err, fault.DeadlineExceeded) || !strings.Contains(err.Error(), "to "+path[0]) &&
				!strings.Contains(err.Error(), "to py1") {
				t.Errorf("%v: the pass: %v", path, err)
			}
			again := make(chan error, 1)
			// the graph is used up, or the first pass is not over at py1
			go func() { again <- c.Backward(gctx, []*autograd.Variable{y.Sum()}) }()
			_ = c.Close()
			select {
			case err := <-again:
				if err == nil {
					t.Errorf("%v: a second pass has succeeded", path)
				}
			case <-time.After(liveness):
				t.Errorf("%v: a second pass has not ended with its context", path)
			}
			p.Signal(syscall.SIGCONT)
			l0.free(t)
			l2.free(t)
			w.freed(ctx, a)
			l0.chain(ctx, t, a, path)
		}
		w.freed(ctx, a)
		w.run()
		w.stop()
	})
}

// TestAutogradLeftOpen: a PyTorch worker leaves the world in order with a context that it has never released, and one that it has
// released twice. The Go workers keep neither.
func TestAutogradLeftOpen(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m0, l0 := goLayer("go0", distautograd.WithLease(time.Second))
		m1, l1 := goLayer("go1", distautograd.WithLease(time.Second))
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, m0, m1, torchWorker("py2", `
import layers
from torch.distributed.autograd import _new_context, _release_context
x = torch.ones(3, dtype=torch.float64, requires_grad=True)
cid = _new_context()._context_id()
dist_autograd.backward(cid, [layers.forward(["go0", "go1"], x).sum()])
_release_context(cid)
try:
    _release_context(cid)
except RuntimeError:
    pass
cid = _new_context()._context_id()
dist_autograd.backward(cid, [layers.forward(["go0", "go1"], x).sum()])
`))
		w.run()
		if n := l0.engine.Stats().Contexts; n != 1 {
			t.Errorf("%d contexts before it leaves", n)
		}
		w.procs["py2"].Send(t, "stop")
		w.procs["py2"].Expect(t, "left")
		w.procs["py2"].MustExit(t, time.Minute)
		l0.free(t)
		l1.free(t)
	})
}
