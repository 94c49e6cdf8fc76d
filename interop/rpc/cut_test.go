// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

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
