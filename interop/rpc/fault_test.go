// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPyTorchWorkerDies kills a PyTorch worker under a call, a fetch and a reference.
func TestPyTorchWorkerDies(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		set := stubSettings(settings{tolerant: true})
		set.modules["pyslow"] = "import time\ndef sleep(s):\n    time.sleep(s)\n    return s\n"
		w := start(t, tr, set, torchWorker("py0", "pass"), goWorker("go1", handlers()), torchWorker("py2", "pass"))
		a, ctx := w.agents["go1"], testContext(t)
		call := rpc.Async[float64](ctx, a, "py2", "pyslow.sleep", 50)
		ref, err := rpc.Remote[float64](ctx, a, "py2", "pyslow.sleep", 50)
		if err != nil {
			t.Fatal(err)
		}
		ready, err := rpc.Remote[int](ctx, a, "py2", "pyrefs.slow", 4)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := ready.Fetch(ctx); err != nil || n != 4 {
			t.Fatalf("fetch: %v, %v", n, err)
		}
		time.Sleep(100 * time.Millisecond)
		w.procs["py2"].Kill()
		killed := time.Now()
		if _, err := call.Await(ctx); !errors.Is(err, cohort.PeerLost) {
			t.Fatalf("call: %v", err)
		}
		if _, err := ref.Fetch(ctx); !errors.Is(err, cohort.PeerLost) {
			t.Fatalf("fetch: %v", err)
		}
		if _, err := ready.Fetch(ctx); !errors.Is(err, rpc.ErrOwnerLost) {
			t.Fatalf("fetch of a confirmed reference: %v", err)
		}
		if took := time.Since(killed); took > liveness {
			t.Errorf("it took %v to notice", took)
		}
		if _, err := rpc.Call[int](ctx, a, "py2", "pyrefs.slow", 4); !errors.Is(err, cohort.PeerLost) {
			t.Fatalf("later call: %v", err)
		}
		if n, err := rpc.Call[int](ctx, a, "py0", "pyrefs.slow", 4); err != nil || n != 4 {
			t.Fatalf("the other worker: %v, %v", n, err)
		}
		left := time.Now()
		if err := a.Shutdown(ctx); !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "py2") {
			t.Errorf("shutdown: %v", err)
		}
		if took := time.Since(left); took > liveness {
			t.Errorf("the shutdown took %v", took)
		}
	})
}

// TestGoWorkerDies ends a Go worker without a word; PyTorch must see an error, not a hang.
func TestGoWorkerDies(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		hang := rpc.NewRegistry().MustHandle("gostub.echo", func(ctx context.Context, x any) any {
			<-ctx.Done()
			return x
		})
		set := stubSettings(settings{tolerant: true})
		w := start(t, tr, set, torchWorker("py0", `
import gostub
f = rpc.rpc_async("go1", gostub.echo, args=(1,))
print("called", flush=True)
try:
    f.wait()
    raise SystemExit("no exception")
except RuntimeError as e:
    print("raised", flush=True)
`), goWorker("go1", hang))
		w.procs["py0"].Send(t, "go")
		w.procs["py0"].Expect(t, "called")
		time.Sleep(100 * time.Millisecond)
		_ = w.agents["go1"].Close()
		w.procs["py0"].Expect(t, "raised")
	})
}

// TestTimeouts lets both sides wait in vain.
func TestTimeouts(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		slow := rpc.NewRegistry().MustHandle("gostub.echo", func(ctx context.Context, x any) any {
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
			}
			return x
		})
		set := stubSettings(settings{tolerant: true})
		set.modules["pyslow"] = "import time\ndef sleep(s):\n    time.sleep(s)\n    return s\n"
		w := start(t, tr, set, torchWorker("py0", `
import gostub
try:
    rpc.rpc_sync("go1", gostub.echo, args=(1,), timeout=0.1)
    raise SystemExit("no exception")
except RuntimeError as e:
    assert "timeout" in str(e), str(e)
time.sleep(0.6)
eq(rpc.rpc_sync("go1", gostub.echo, args=(2,)), 2)
`), goWorker("go1", slow))
		w.run()
		a := w.agents["go1"]
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, err := rpc.Call[float64](ctx, a, "py0", "pyslow.sleep", 0.5)
		if !errors.Is(err, cohort.DeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("call: %v", err)
		}
		ctx2, cancel2 := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel2)
		if _, err := rpc.Call[float64](ctx2, a, "py0", "pyslow.sleep", 0.5); !errors.Is(err, cohort.Canceled) {
			t.Fatalf("cancelled call: %v", err)
		}
		time.Sleep(600 * time.Millisecond) // the late answers come and do no harm
		if n, err := rpc.Call[float64](testContext(t), a, "py0", "pyslow.sleep", 0); err != nil || n != 0 {
			t.Fatalf("later call: %v, %v", n, err)
		}
		w.stop()
	})
}

// TestGarbage throws all kinds of bytes at a Go worker's port while PyTorch works with it.
func TestGarbage(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		set := stubSettings(settings{tolerant: true})
		w := start(t, tr, set, torchWorker("py0", `
import gostub
for i in range(300):
    eq(rpc.rpc_sync("go1", gostub.echo, args=(i,)), i)
`), goWorker("go1", handlers()))
		addr := w.agents["go1"].Addr()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, garbage := range []string{
				"", "\x00", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\xff\xff\xff\xff\xff\xff\xff\x7f",
				"\x05\x00\x00\x00\x00\x00\x00\x00\xb8\x00\xb9\x01\x05",
				"\x04\x00\x00\x00\x00\x00\x00\x00\xb8\x01\xb9\x01", string(make([]byte, 4096)),
			} {
				for range 5 {
					c, err := net.Dial("tcp", addr)
					if err != nil {
						t.Errorf("dial: %v", err)
						return
					}
					_, _ = c.Write([]byte(garbage))
					_ = c.Close()
				}
			}
		}()
		w.run()
		<-done
		w.stop()
	})
}
