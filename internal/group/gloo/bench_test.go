// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// repeat runs the same collective count times on all ranks of a world.
func repeat(tb testing.TB, meshes []*Mesh, count int, first uint32, req collective.Request) {
	tb.Helper()
	var wg sync.WaitGroup
	for _, m := range meshes {
		wg.Go(func() {
			e := NewEngine(m)
			q := req
			if q.Out != nil {
				q.Out = make([]byte, len(req.Out))
			}
			for i := range count {
				q.Tag = first + uint32(i)
				if err := e.Run(context.Background(), &q); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkAllReduce(b *testing.B) {
	for _, size := range []int{2, 3} {
		for _, n := range []int{4, 1 << 10, 64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("ranks-%d/%dB", size, n), func(b *testing.B) {
				meshes := connectWorld(b, size, nil)
				req := collective.Request{Kind: collective.AllReduce, DType: tensor.Float32, Out: make([]byte, n)}
				b.SetBytes(int64(n))
				b.ResetTimer()
				repeat(b, meshes, b.N, 0, req)
			})
		}
	}
}

func BenchmarkPingPong(b *testing.B) {
	for _, n := range []int{4, 1 << 20} {
		b.Run(fmt.Sprintf("%dB", n), func(b *testing.B) {
			meshes := connectWorld(b, 2, nil)
			var wg sync.WaitGroup
			b.ResetTimer()
			for r, m := range meshes {
				wg.Go(func() {
					op := &transport.Op{Peer: 1 - r, Slot: 1, Buf: make([]byte, n)}
					for i := range 2 * b.N {
						if i%2 == r {
							m.Send(op)
						} else {
							m.Recv(op)
						}
						if err := m.Wait(context.Background(), op); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestSteadyStateDoesNotAllocate counts the allocations of all ranks together after a warm-up.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	meshes := connectWorld(t, 3, nil)
	for _, req := range []collective.Request{
		{Kind: collective.AllReduce, DType: tensor.Float32, Out: make([]byte, 4)},
		{Kind: collective.AllReduce, DType: tensor.Float32, Out: make([]byte, 64<<10)},
		{Kind: collective.Broadcast, DType: tensor.Float32, Out: make([]byte, 1000)},
		{Kind: collective.Barrier},
	} {
		const rounds = 200
		repeat(t, meshes, rounds, 0, req)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		repeat(t, meshes, rounds, rounds, req)
		runtime.ReadMemStats(&after)
		perOp := float64(after.Mallocs-before.Mallocs) / (3 * rounds)
		t.Logf("%s of %d bytes: %.3f allocations per call", req.Kind, len(req.Out), perOp)
		if perOp > 0.5 {
			t.Errorf("%s of %d bytes: %.2f allocations per call", req.Kind, len(req.Out), perOp)
		}
	}
}
