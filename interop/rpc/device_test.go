// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestDeviceMapOfCPU: a PyTorch worker that maps its CPU to that of a Go worker; its tensors arrive and come back as without a map.
func TestDeviceMapOfCPU(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		set = stubSettings(set)
		set.options = `, device_maps={"go1": {"cpu": "cpu"}}`
		w := start(t, tr, set, torchWorker("py0", `
import gostub
for call in (lambda f, *args: rpc.rpc_sync("go1", f, args=args), lambda f, *args: rpc.remote("go1", f, args=args).to_here()):
    for z in (call(torch.add, torch.zeros(2), torch.ones(2)), call(gostub.scale, torch.ones(2), 1.0)):
        teq(z, torch.ones(2))
        eq(z.device, torch.device("cpu"))
`), goWorker("go1", mergedHandlers()))
		w.run()
		w.stop()
	})
}
