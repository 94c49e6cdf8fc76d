// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
)

// TestCallIsRefused lets a Go worker refuse calls of PyTorch that have references among their arguments: an own one, one of the Go worker
// and one of a third worker. They are released whatever the call was refused for, and PyTorch's shutdown waits for nothing.
func TestCallIsRefused(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := start(t, tr, refSettings(settings{static: true, tolerant: true}),
			goWorker("go0", refHandlers(), rpc.WithConcurrency(1), rpc.WithQueue(2)), torchWorker("py1", `
import refstub, pyrefs
def refused(why, fn, *args, before=lambda: None):
    mine, third = rpc.RRef(7), rpc.remote("py2", pyrefs.make, args=(1,))
    yours = rpc.remote("go0", refstub.tensor, args=(1,))
    yours.to_here(), third.to_here()
    before()
    try:
        rpc.rpc_sync("go0", fn, args=args + (mine, yours, third))
    except Exception as e:
        return why in str(e), str(e)
    raise SystemExit("not refused: " + why)
def must(why, fn, *args):
    was, text = refused(why, fn, *args)
    assert was, text
itself = []
itself.append(itself)
must("pyrefs.give", pyrefs.give)
must("by name only", pyrefs.Thing(1).get)
must("contains itself", refstub.keep, itself)
must("quantized", refstub.keep, torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
def full():
    fillers = []
    was, _ = refused("wait for a slot", pyrefs.give, before=lambda: fillers.extend(rpc.rpc_async("go0", refstub.slow) for _ in range(6)))
    for f in fillers:
        try:
            f.wait()
        except RuntimeError:
            pass
    return was
while not full(): pass
gc.collect()
end = time.time() + 20
while refinfo()["num_owner_rrefs"] != "0" or refinfo()["num_pending_users"] != "0":
    assert time.time() < end, refinfo()
    time.sleep(0.05)
`), torchWorker("py2", "pass"))
		w.run()
		eventually(t, w.agents["go0"], "num_owner_rrefs", 0)
		w.stop()
	})
}

// In a later world only a PyTorch worker knows which all-gather of some names is next. Here it dies when the Go followers have
// learned the number and their Go leader has not: the leader cannot enter the all-gather, and no worker may wait for it.
func TestCountDiesWithItsPyTorchWorker(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		ctx := testContext(t)
		port := testkit.FreePort(t)
		hostStore(t, port)
		p := tr.Start(t, torchtest.Script{Name: "p.py", Modules: map[string]string{"gostub": gostub}, Source: obeys})
		for _, order := range []string{"init", "leave", "init"} {
			p.Send(t, order+" p 3 0 tcp://127.0.0.1:"+strconv.Itoa(port))
			p.Expect(t, "done "+order)
		}
		join := func(rank cohort.Rank, name string) *rpc.Agent {
			return joinAt(ctx, t, "127.0.0.1:"+strconv.Itoa(port), name, rpc.WithRank(rank), rpc.WithTimeout(time.Minute))
		}
		leader, early, late := join(0, "a"), join(1, "b"), join(2, "c")
		names := []string{"a", "b", "c", "p"}
		enter := func(ctx context.Context, a *rpc.Agent) <-chan error {
			ended := make(chan error, 1)
			go func() { ended <- rpc.Barrier(ctx, a, names...) }()
			return ended
		}
		short, cancel := context.WithTimeout(ctx, time.Second) // c learns the number and goes
		defer cancel()
		if err := <-enter(short, late); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatalf("no other worker has entered, and the barrier of c ends: %v", err)
		}
		waits := enter(ctx, early)
		time.Sleep(time.Second) // it learns it and reports to the leader
		p.Kill()
		begun := time.Now()
		ends := func(who string, ended <-chan error) {
			t.Helper()
			select {
			case err := <-ended:
				var e *cohort.Error
				if !errors.As(err, &e) || e.Code != cohort.PeerLost || e.Peer != "p" {
					t.Errorf("%s: %v", who, err)
				}
				t.Logf("%s after %v: %v", who, time.Since(begun).Round(time.Millisecond), err)
			case <-time.After(10 * time.Second):
				t.Errorf("%s waits", who)
			}
		}
		ends("the leader", enter(ctx, leader))
		ends("the follower that waits", waits)
		ends("the follower that comes again", enter(ctx, late))
	})
}
