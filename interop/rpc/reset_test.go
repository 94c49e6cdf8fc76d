// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
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

// pycut ends connections of its process as if the network had: those that others have opened, and its own to a port.
const pycut = `
import os, socket
def cut(port, others=True):
    listening, found = set(), []
    for fd in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(fd))
        except OSError:
            continue
        try:
            s = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue
        if s.family in (socket.AF_INET, socket.AF_INET6):
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.add(s.getsockname()[1])
            else:
                found.append(s)
                continue
        s.close()
    for s in found:
        try:
            if s.getpeername()[1] == port or others and s.getsockname()[1] in listening:
                s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        s.close()
def cut_own(port): cut(port, False)
def held():
    import pyrefs
    return pyrefs.store[0].to_here()
`

// TestPipesAreCut cuts the connections of a PyTorch worker that lives. Calls under way fail; references from before and after stay
// usable far longer than those of a dead worker; and when it dies, that is noticed.
func TestPipesAreCut(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		const grace = 200 * time.Millisecond
		for name, every := range map[string]bool{"of Go": false, "both": true} {
			t.Run(name, func(t *testing.T) {
				set := refSettings(settings{tolerant: true})
				set.modules["pycut"] = pycut
				w := start(t, tr, set, goWorker("go0", nil, rpc.WithLease(grace, 2*grace, grace)), torchWorker("py1", "pass"))
				a, ctx, port := w.agents["go0"], testContext(t), 0
				if every {
					at, err := netip.ParseAddrPort(a.Addr())
					if err != nil {
						t.Fatal(err)
					}
					port = int(at.Port())
				}
				remote := func() *rpc.Ref[*tensor.Tensor] {
					t.Helper()
					r, err := rpc.Remote[*tensor.Tensor](ctx, a, "py1", "pyrefs.make", 3)
					if err == nil {
						err = r.Confirmed(ctx)
					}
					if err != nil {
						t.Fatal(err)
					}
					return r
				}
				mine, err := rpc.NewRef(a, 7)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := rpc.Call[any](ctx, a, "py1", "pyrefs.keep", mine); err != nil {
					t.Fatal(err)
				}
				_ = mine.Close() // the PyTorch worker alone keeps the object
				refs := []*rpc.Ref[*tensor.Tensor]{remote()}
				for range 3 {
					if _, err := rpc.Call[any](ctx, a, "py1", "pycut.cut", port); !errors.Is(err, cohort.PeerLost) {
						t.Fatalf("the call that cuts its own connection: %v", err)
					}
					refs = append(refs, remote())
				}
				for end := time.Now().Add(10 * grace); time.Now().Before(end); time.Sleep(grace / 2) {
					for i, r := range append(refs, remote()) {
						if x, err := r.Fetch(ctx); err != nil || x.Numel() != 3 {
							t.Fatalf("reference %d: %v, %v", i, x, err)
						}
					}
				}
				if every { // it never opens its own pipe to us again, and cannot leave in order
					eventually(t, a, "num_owner_rrefs", 1)
					w.procs["py1"].Kill()
					eventually(t, a, "num_owner_rrefs", 0)
					if err := a.Shutdown(ctx); !errors.Is(err, cohort.PeerLost) { // of one that has not said that it leaves
						t.Errorf("shutdown: %v", err)
					}
					return
				}
				if v, err := rpc.Call[int](ctx, a, "py1", "pycut.held"); err != nil || v != 7 {
					t.Fatalf("the reference that the PyTorch worker holds: %v, %v", v, err)
				}
				for _, r := range refs {
					_ = r.Close()
				}
				if _, err := rpc.Call[any](ctx, a, "py1", "pyrefs.drop"); err != nil {
					t.Fatal(err)
				}
				eventually(t, a, "num_owner_rrefs", 0)
				w.run()
				w.stop()
			})
		}
	})
}
