// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// TestClientCallsPyTorch calls a PyTorch worker of a static world as a client, which it does not know: it still answers,
// and goes on.
func TestClientCallsPyTorch(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := start(t, tr, settings{static: true}, torchWorker("py0", "pass"), goWorker("go1", nil))
		ctx := testContext(t)
		client, err := rpc.NewClient(ctx, w.stores[0], "a_client", rpc.WithAddr("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		for range 3 {
			if n, failed := rpc.Call[int](ctx, client, "py0", "operator.add", 20, 22); failed != nil || n != 42 {
				t.Fatalf("%v, %v", n, failed)
			}
		}
		x := tensor.Must(tensor.From([]float32{1, 2}, 2))
		y, err := rpc.Call[*tensor.Tensor](ctx, client, "py0", "torch.add", x, x)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := tensor.Copy[float32](y); err != nil || !slices.Equal(data, []float32{2, 4}) {
			t.Errorf("%v, %v", data, err)
		}
		if _, err := rpc.Call[any](ctx, client, "py0", "operator.nothing"); !errors.Is(err, cohort.NotFound) {
			t.Errorf("no such function: %v", err)
		}
		if n, err := rpc.Call[int](ctx, w.agents["go1"], "py0", "operator.add", 1, 2); err != nil || n != 3 {
			t.Errorf("a member afterwards: %v, %v", n, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		w.run()
		w.stop()
	})
}

// TestAddresses lets PyTorch dial a Go worker at an IPv6 address, and at one that was given as a name, in dynamic worlds:
// the gloo group of a static one wants addresses of one kind.
func TestAddresses(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		addresses := map[string]func() []rpc.Option{
			"ipv6": func() []rpc.Option { return []rpc.Option{rpc.WithAddr("[::1]:0")} },
			"name": func() []rpc.Option {
				port := strconv.Itoa(testkit.FreePort(t))
				return []rpc.Option{rpc.WithAddr("127.0.0.1:" + port), rpc.WithAdvertise("localhost:" + port)}
			},
		}
		if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
			_ = l.Close()
		} else {
			t.Log("this machine has no IPv6: ", err)
			delete(addresses, "ipv6")
		}
		for name, options := range addresses {
			t.Run(name, func(t *testing.T) {
				w := start(t, tr, stubSettings(settings{}), torchWorker("py0", `
import gostub
for n in [1, 1000, 1 << 18]:
    x = torch.arange(n, dtype=torch.float32)
    teq(rpc.rpc_sync("go1", gostub.echo, args=(x,)), x)
`), goWorker("go1", handlers(), options()...))
				callAll(t, w)
				w.run()
				w.stop()
			})
		}
	})
}

type counterObject struct{ n int }

func (c *counterObject) Add(n int) int { c.n += n; return c.n }

func stubbed() *rpc.Registry {
	type args struct {
		X      *tensor.Tensor `rpc:"x,required"`
		Factor float64
	}
	return rpc.NewRegistry().
		MustHandle("served.first", func(a args) (float64, error) {
			xs, err := tensor.Copy[float32](a.X)
			if err != nil {
				return 0, err
			}
			return float64(xs[0]) * a.Factor, nil
		}, rpc.Doc("The first element, scaled.")).
		MustHandle("served.new_counter", func(start int) *counterObject { return &counterObject{start} }, rpc.Params("start")).
		MustClass("served.Counter", &counterObject{})
}

// TestStubs: PyTorch imports what `cohort rpc stubs` has written for a Go worker, and calls its functions and methods with it.
func TestStubs(t *testing.T) {
	ctx := testContext(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	joinAt(ctx, t, server.Addr().String(), "go1", rpc.WithRank(0), rpc.WithWorldSize(1), rpc.WithHandlers(stubbed()))
	dir := t.TempDir()
	if code, _, complaint := testkit.RunProgram(t, testkit.BuildProgram(t, "cmd/cohort"), "rpc", "stubs", "go1", "--addr",
		server.Addr().String(), "--out", dir); code != 0 {
		t.Fatalf("exit %d: %s", code, complaint)
	}
	module, err := os.ReadFile(filepath.Join(dir, "served.py"))
	if err != nil {
		t.Fatal(err)
	}
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		set := settings{static: true, modules: map[string]string{"served": string(module)}}
		w := start(t, tr, set, torchWorker("py0", `
import served
eq(rpc.rpc_sync("go1", served.first, args=(torch.tensor([2., 3.]),), kwargs={"factor": 4.0}), 8.0)
eq(served.first.__doc__, "The first element, scaled.")
ref = rpc.remote("go1", served.new_counter, kwargs={"start": 5})
eq(ref.rpc_sync().add(2), 7)
print("ok", flush=True)
`), goWorker("go1", stubbed()))
		w.run()
		w.stop()
	})
}
