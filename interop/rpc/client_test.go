// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
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
