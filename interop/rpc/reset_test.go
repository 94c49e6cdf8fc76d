// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// resetCaller calls a Go worker again and again, and says at the end how often it had what it asked for, and how often an error.
const resetCaller = `
import os, torch
import torch.distributed.rpc as rpc
import refstub
right = wrong = failed = 0
try:
    rpc.init_rpc("py1", rank=1, world_size=None, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=%q, rpc_timeout=5))
    for n in (0, 1, 7, 1000, 20000, 3, 0, 5000):
        try:
            right, wrong = (right + 1, wrong) if torch.equal(rpc.rpc_sync("go0", refstub.tensor, args=(n,)), torch.ones(n)) else (right, wrong + 1)
        except RuntimeError:
            failed += 1
except RuntimeError:
    failed += 1
print(wrong, "wrong,", "all right" if right == 8 and not failed else "some failed", flush=True)
os._exit(0)
`

// TestPipeIsResetAtBytes resets a connection of a PyTorch worker's pipe to a Go worker after some bytes, in either
// direction. PyTorch's calls give what they should or an error, and none hangs.
func TestPipeIsResetAtBytes(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, n := range []int{8, 120, 500, 1000, 2000, 10_000} {
			for _, down := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d-down-%v", n, down), func(t *testing.T) {
					t.Parallel()
					storePort, port, ctx := testkit.FreePort(t), testkit.FreePort(t), testContext(t)
					hostStore(t, storePort)
					st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(storePort))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = st.Close() })
					here := "127.0.0.1:" + strconv.Itoa(port)
					proxy, err := faultnet.ListenTCP(here)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = proxy.Close() })
					if down {
						proxy.SetDown(faultnet.Fault{CutAfter: n})
					} else {
						proxy.SetUp(faultnet.Fault{CutAfter: n})
					}
					a, err := rpc.Join(ctx, st, "go0", rpc.WithRank(0), rpc.WithHandlers(refHandlers()), rpc.WithAddr(here),
						rpc.WithAdvertise(proxy.Addr()))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = a.Close() })
					script := torchtest.Script{
						Modules: refSettings(settings{}).modules,
						Source:  fmt.Sprintf(resetCaller, "tcp://127.0.0.1:"+strconv.Itoa(storePort)),
					}
					p := tr.Start(t, script)
					line := p.Line(t)
					if line != "0 wrong, all right" && line != "0 wrong, some failed" {
						t.Error(line)
					}
					t.Log(line)
					p.MustExit(t, 30*time.Second)
				})
			}
		}
	})
}
