// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcproof_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// users is how PyTorch workers use the objects of the Go worker go0. They run what they are told, line by line.
const users = `
import gc, os, sys, time
os.environ["TP_SOCKET_IFNAME"] = "lo"
import torch
import torch.distributed.rpc as rpc
import gow, users
name, rank, size, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:%d" % port, rpc_timeout=30)
rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)
print("joined", flush=True)
for line in sys.stdin:
    if line.strip() == "leave":
        break
    exec(line)
    gc.collect()
gc.collect()
rpc.shutdown()
print("left", flush=True)
`

var userModules = map[string]string{
	"gow":   "def slow(seconds): ...\ndef use(ref): ...\n", // stubs of what go0 serves
	"users": "def noop(ref):\n    return ref.confirmed_by_owner()\n",
}

// mixed is a static world of the Go worker go0 and two PyTorch workers.
type mixed struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // of the test
	owner  *rpc.Agent
	python []*torchtest.Proc
}

func startMixed(t *testing.T, tr *torchtest.Torch) *mixed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	_, port, err := net.SplitHostPort(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	w := &mixed{T: t, ctx: ctx}
	for rank := 1; rank <= 2; rank++ {
		w.python = append(w.python, tr.Start(t, torchtest.Script{
			Source: users, Modules: userModules, Args: []string{"py" + strconv.Itoa(rank), strconv.Itoa(rank), "3", port},
		}))
	}
	st, err := tcpstore.Dial(ctx, server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if _, err = st.JoinWorker(ctx); err != nil {
		t.Fatal(err)
	}
	reg := rpc.NewRegistry().
		MustHandle("gow.slow", func(ctx context.Context, seconds float64) (int, error) {
			select {
			case <-time.After(time.Duration(seconds * float64(time.Second))):
				return 42, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}, rpc.Params("seconds")).
		MustHandle("gow.use", func(ctx context.Context, ref *rpc.Ref[any]) (any, error) {
			defer func() { _ = ref.Close() }()
			return ref.LocalValue(ctx)
		}, rpc.Params("ref"))
	w.owner, err = rpc.Join(ctx, st, "go0", rpc.WithRank(0), rpc.WithWorldSize(3), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg),
		rpc.WithLease(100*time.Millisecond, 500*time.Millisecond, 200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.owner.Close() })
	for _, p := range w.python {
		p.Expect(t, "joined")
	}
	return w
}

// empty waits until the owner keeps nothing for others.
func (w *mixed) empty() {
	w.Helper()
	var info map[string]int
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if info = w.owner.DebugInfo(); info["num_owner_rrefs"] == 0 && info["num_forks"] == 0 {
			return
		}
	}
	w.Errorf("the owner still has %d objects and %d forks: %+v", info["num_owner_rrefs"], info["num_forks"], w.owner.References().Objects)
}

func (w *mixed) leave() {
	w.Helper()
	for _, p := range w.python {
		p.Send(w.T, "leave")
	}
	if err := w.owner.Shutdown(w.ctx); err != nil {
		w.Error(err)
	}
	for _, p := range w.python {
		p.Expect(w.T, "left")
		p.MustExit(w.T, 30*time.Second)
	}
}

// A PyTorch user is killed: PyTorch's owner keeps its object for ever, a Go owner frees it.
func TestW01PyTorchUserKilled(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := startMixed(t, tr)
		w.python[0].Send(t, `r = rpc.remote("go0", gow.slow, args=(0.0,)); print(r.to_here(), flush=True)`)
		w.python[0].Expect(t, "42")
		if got := w.owner.DebugInfo()["num_forks"]; got != 1 {
			t.Fatalf("%d forks", got)
		}
		w.python[0].Kill()
		w.empty()
		w.python[1].Kill()
	})
}

// A creation times out at its PyTorch creator, which drops it while the function runs: PyTorch's owner leaks it.
func TestW06PyTorchCreationTimesOut(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := startMixed(t, tr)
		w.python[0].Send(t,
			`r = rpc.remote("go0", gow.slow, args=(0.7,), timeout=0.1); time.sleep(0.3); del r; print("dropped", flush=True)`)
		w.python[0].Expect(t, "dropped")
		time.Sleep(700 * time.Millisecond) // the function has ended
		w.empty()
		w.leave()
	})
}

// The split object: a third worker comes and goes while the creating function runs, and the owner's own code uses the
// reference. PyTorch's owner waits for ever.
func TestW12PyTorchUsersOneObject(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := startMixed(t, tr)
		for _, line := range []string{
			`r = rpc.remote("go0", gow.slow, args=(1.0,))`,
			`f = rpc.rpc_async("go0", gow.use, args=(r,), timeout=25)`,
			`time.sleep(0.2)`,
			`print("third", rpc.rpc_sync("py2", users.noop, args=(r,)), flush=True)`,
			`print("use", f.wait(), "fetch", r.to_here(), flush=True)`,
			`del r, f`,
		} {
			w.python[0].Send(t, line)
		}
		w.python[0].Expect(t, "third True")
		w.python[0].Expect(t, "use 42 fetch 42")
		w.python[1].Send(t, "pass")
		w.empty()
		w.leave()
	})
}
