// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestStoreClientAtAPortOfAWorker: a client of a store that is pointed at the ports of a PyTorch worker, again and again, says what they
// are and does the worker no harm. Before, the first try ended PyTorch 1.13: it took the first bytes of the client for a length and had not
// so much memory.
func TestStoreClientAtAPortOfAWorker(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := start(t, tr, settings{static: true}, torchWorker("py0", "pass"), goWorker("go1", nil))
		ctx := testContext(t)
		pid := w.procs["py0"].PID()
		probed := 0
		for _, at := range portowner.ReadSockets([]int{pid}).Listening(pid) {
			if at.Addr().IsUnspecified() {
				continue
			}
			for range []int{100, 3}[min(probed, 1)] {
				_, err := tcpstore.Dial(ctx, at.String())
				if !errors.Is(err, cohort.Protocol) || !strings.Contains(err.Error(), "TensorPipe") {
					t.Fatalf("%s: %v", at, err)
				}
			}
			probed++
		}
		if probed == 0 {
			t.Fatal("the worker listens nowhere")
		}
		client, err := rpc.NewClient(ctx, w.stores[0], "a_client", rpc.WithAddr("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		if n, err := rpc.Call[int](ctx, client, "py0", "operator.add", 20, 22); err != nil || n != 42 {
			t.Errorf("a new connection afterwards: %v, %v", n, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		w.run()
		w.stop()
	})
}
