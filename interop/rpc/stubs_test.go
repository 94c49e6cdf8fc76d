// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

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
