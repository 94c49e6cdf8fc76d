// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native"
	"github.com/cohort-dist/cohort/internal/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// A large message is copied by the kernel, into it and out of it, and by nobody else but for a few bytes behind headers: so at
// most two copies per byte that is sent, and a hundredth.
func TestLargeMessagesAreNotCopiedAgain(t *testing.T) {
	for _, size := range []int{64 << 10, 1 << 20, 8 << 20} {
		meshes := connect(t, 2, nil)
		const count = 4
		var wg sync.WaitGroup
		for r, m := range meshes {
			wg.Go(func() {
				var ops []*link.Op
				for i := range count {
					in := &link.Op{Peer: 1 - r, Slot: 3, Buf: make([]byte, size)}
					out := &link.Op{Peer: 1 - r, Slot: 3, Buf: bytes.Repeat([]byte{byte(i + 1)}, size)}
					m.Recv(in)
					m.Send(out)
					ops = append(ops, in, out)
				}
				for i, op := range ops {
					if err := wait(t, m, op); err != nil {
						t.Error(errors.Join(err))
					}
					if want := byte(i/2 + 1); op.Buf[0] != want || op.Buf[size-1] != want {
						t.Errorf("message %d of %d bytes has %d and %d at its ends", i/2, size, op.Buf[0], op.Buf[size-1])
					}
				}
			})
		}
		wg.Wait()
		for r, m := range meshes {
			m.mu.Lock()
			copied := m.mu.copied
			m.mu.Unlock()
			if share := float64(copied) / float64(count*size); share > 0.01 {
				t.Errorf("rank %d: %.3f copies per byte of %d, besides the kernel's two", r, share, size)
			}
		}
	}
}

// The same holds for whole collectives of large tensors: what arrives goes straight to where it is wanted or reduced.
func TestLargeCollectivesCopyNothingTwice(t *testing.T) {
	const size = 4 << 20
	for _, n := range []int{2, 4} {
		for kind, sent := range map[coll.Kind]int{ // by all ranks together
			coll.AllReduce:     2 * (n - 1) * size,
			coll.Broadcast:     (n - 1) * size,
			coll.Reduce:        (n-1)*size + (n-1)*size/n, // each rank's blocks, then the reduced ones
			coll.AllGather:     n * (n - 1) * size,
			coll.Gather:        (n - 1) * size,
			coll.Scatter:       (n - 1) * size,
			coll.ReduceScatter: n * (n - 1) * size,
			coll.AllToAll:      n * (n - 1) * size,
		} {
			meshes := connect(t, n, nil)
			var wg sync.WaitGroup
			for r, m := range meshes {
				wg.Go(func() {
					q := &coll.Request{Kind: kind, DType: tensor.Float32, Op: reduce.Sum}
					switch root := r == 0; {
					case kind == coll.AllReduce || kind == coll.Broadcast || kind == coll.Reduce:
						q.Out = make([]byte, size)
					case kind == coll.AllGather || kind == coll.Gather && root:
						q.In, q.Out = make([]byte, size), make([]byte, n*size)
					case kind == coll.Gather:
						q.In = make([]byte, size)
					case kind == coll.ReduceScatter || kind == coll.Scatter && root:
						q.In, q.Out = make([]byte, n*size), make([]byte, size)
					case kind == coll.Scatter:
						q.Out = make([]byte, size)
					default:
						q.In, q.Out = make([]byte, n*size), make([]byte, n*size)
					}
					if err := native.NewEngine(m, native.Tuning{}).Run(t.Context(), q); err != nil {
						t.Errorf("%v, rank %d: %v", kind, r, err)
					}
				})
			}
			wg.Wait()
			copied := 0
			for _, m := range meshes {
				m.mu.Lock()
				copied += m.mu.copied
				m.mu.Unlock()
			}
			if share := float64(copied) / float64(sent); share > 0.01 {
				t.Errorf("%v with %d ranks: %.3f copies per byte that is sent, besides the kernel's two", kind, n, share)
			}
		}
	}
}
