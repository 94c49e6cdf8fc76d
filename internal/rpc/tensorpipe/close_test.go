// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestCloseAmidDials closes an endpoint at every moment of its dials. A dial whose connection comes while the endpoint
// closes must end in an error, whichever of the two is first.
func TestCloseAmidDials(t *testing.T) {
	peer := goWorker(t, "peer")
	var drain sync.WaitGroup
	drain.Go(func() {
		for {
			s, err := peer.Accept(context.Background())
			if err != nil {
				return
			}
			_ = s.Close()
		}
	})
	defer func() { _ = peer.Close(); drain.Wait() }()
	for range 300 {
		ep := goWorker(t, "dialler")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		var dials sync.WaitGroup
		for range 4 {
			dials.Go(func() {
				if s, dialErr := ep.Dial(ctx, peer.Addr().String()); dialErr == nil {
					_ = s.Close()
				}
			})
		}
		dials.Go(func() { _, _ = ep.Connect(ctx, "peer", peer.Addr().String()) })
		time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond)
		_ = ep.Close()
		dials.Wait()
		if ctx.Err() != nil {
			t.Fatal("a dial outlived its endpoint")
		}
		cancel()
	}
}
