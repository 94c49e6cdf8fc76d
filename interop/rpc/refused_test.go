// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"testing"

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
