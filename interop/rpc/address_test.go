// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
)

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
