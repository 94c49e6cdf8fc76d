// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed gateway.py
var gatewayScript string

// gatewayTo starts a gateway to a store, whose connection is cut every so often, and returns its port.
func gatewayTo(t *testing.T, s *tcpstore.Server, every time.Duration) (*storegate.Gateway, int) {
	t.Helper()
	proxy, port := between(t, s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, err := storegate.Serve(l, storegate.Options{Upstreams: []string{"127.0.0.1:" + port}})
	if err != nil {
		t.Fatal(err)
	}
	var cutting sync.WaitGroup
	done := make(chan struct{})
	cutting.Go(func() {
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticks.C:
				proxy.Cut()
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		cutting.Wait()
		_ = g.Close()
		_ = proxy.Close()
	})
	_, port, err = net.SplitHostPort(g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return g, n
}

// TestGatewayClients: PyTorch's clients work through two gateways whose connections to the store are cut several times a second. No
// operation fails, and each counts once.
func TestGatewayClients(t *testing.T) {
	const clients, rounds = 4, 300
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Parallel()
		s := serve(t)
		var gates [2]*storegate.Gateway
		var ports [2]int
		for i := range gates {
			gates[i], ports[i] = gatewayTo(t, s, 100*time.Millisecond)
		}
		var all []*torchtest.Proc
		for i := range clients {
			all = append(all, torch.Start(t, torchtest.Script{
				Source: gatewayScript,
				Args:   []string{strconv.Itoa(ports[i%2]), strconv.Itoa(i), strconv.Itoa(clients), strconv.Itoa(rounds)},
			}))
		}
		for _, p := range all {
			if line := p.Line(t); line != "counted" {
				t.Errorf("%q, %s", line, p.Stderr())
			}
		}
		c, err := tcpstore.Dial(t.Context(), "127.0.0.1:"+strconv.Itoa(s.Port()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if n, err := c.Add(t.Context(), "count", 0); n != clients*rounds || err != nil {
			t.Errorf("%d, %v, want %d", n, err, clients*rounds)
		}
		t.Logf("%+v", gates[0].State())
	})
}

// TestGatewaySuite runs some of PyTorch's own tests over a gateway whose connection to the store is cut every second.
func TestGatewaySuite(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 5) {
			torch.NotApplicable(t, "has no expecttest, which its own tests import")
		}
		_, dir := torch.TempDir(t)
		s := suite{tests: "object_list|barrier$|new_subgroups$|ddp_join_model_equivalence", passed: 1}
		runSuite(t, torch, "distributed", s, dir, func(t *testing.T) int {
			_, port := gatewayTo(t, serve(t), time.Second)
			return port
		})
	})
}
