// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// A large message is copied by the kernel, into it and out of it, and by no one else but for a few bytes behind headers: so at
// most two copies per byte that is sent, and a hundredth.
func TestLargeMessagesAreNotCopiedAgain(t *testing.T) {
	for _, size := range []int{64 << 10, 1 << 20, 8 << 20} {
		meshes := connect(t, 2, nil)
		const count = 4
		var wg sync.WaitGroup
		for r, m := range meshes {
			wg.Go(func() {
				var ops []*transport.Op
				for i := range count {
					in := &transport.Op{Peer: 1 - r, Slot: 3, Buf: make([]byte, size)}
					out := &transport.Op{Peer: 1 - r, Slot: 3, Buf: bytes.Repeat([]byte{byte(i + 1)}, size)}
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

// countingMesh counts what an algorithm sends.
type countingMesh struct {
	*Mesh
	sent  int
	eager int // of it in messages that do not ask for room first
}

func (m *countingMesh) Send(op *transport.Op) {
	m.sent += len(op.Buf)
	if len(op.Buf) <= eagerMax {
		m.eager += len(op.Buf)
	}
	m.Mesh.Send(op)
}

// The same holds for whole collectives of large tensors: what arrives goes straight to where it is wanted or reduced. That the algorithms
// copy no messages is tested beside them. Messages that do not ask for room first are the exception: an all-reduce of 256 KiB with 8 or 16
// ranks ends with a few. They are copied once if they come together with others, and twice if no receive has asked for them yet.
func TestLargeCollectivesCopyNothingTwice(t *testing.T) {
	const most = 512 << 20 // that all ranks send
	for _, n := range []int{2, 4, 8, 16} {
		for _, size := range []int{256 << 10, 1 << 20, 4 << 20} {
			for _, kind := range []collective.Kind{
				collective.AllReduce, collective.Broadcast, collective.Reduce,
				collective.Gather, collective.Scatter, collective.AllGather, collective.ReduceScatter, collective.AllToAll,
			} {
				if kind == collective.AllGather || kind == collective.ReduceScatter || kind == collective.AllToAll {
					if n*n*size > most {
						continue
					}
				}
				t.Run(fmt.Sprintf("%v of %d bytes with %d ranks", kind, size, n), func(t *testing.T) {
					sent, eager, copied := copiesIn(t, kind, n, size)
					if copied > sent/100+2*eager {
						t.Errorf("%.3f copies per byte that is sent, besides the kernel's two, and %.3f of the bytes do not ask for room",
							float64(copied)/float64(sent), float64(eager)/float64(sent))
					}
					if eager > 0 && (kind != collective.AllReduce || size > 256<<10) {
						t.Errorf("%d of %d bytes do not ask for room", eager, sent)
					}
				})
			}
		}
	}
}

// copiesIn runs a collective and returns the bytes that all ranks sent, those of small messages among them, and those that were copied.
func copiesIn(t *testing.T, kind collective.Kind, n, size int) (sent, eager, copied int) {
	t.Helper()
	meshes := connect(t, n, nil)
	counting := make([]countingMesh, n)
	block, all := make([]byte, size), make([]byte, n*size) // of those who only read
	var wg sync.WaitGroup
	for r, m := range meshes {
		counting[r].Mesh = m
		wg.Go(func() {
			q := &collective.Request{Kind: kind, DType: tensor.Float32, Op: reduce.Sum}
			switch root := r == 0; {
			case kind == collective.AllReduce || kind == collective.Broadcast || kind == collective.Reduce:
				q.Out = make([]byte, size)
			case kind == collective.AllGather || kind == collective.Gather && root:
				q.In, q.Out = block, make([]byte, n*size)
			case kind == collective.Gather:
				q.In = block
			case kind == collective.ReduceScatter || kind == collective.Scatter && root:
				q.In, q.Out = all, make([]byte, size)
			case kind == collective.Scatter:
				q.Out = make([]byte, size)
			default:
				q.In, q.Out = all, make([]byte, n*size)
			}
			if err := native.NewEngine(&counting[r], native.Tuning{}).Run(t.Context(), q); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
	for r, m := range meshes {
		m.mu.Lock()
		copied += m.mu.copied
		m.mu.Unlock()
		sent, eager = sent+counting[r].sent, eager+counting[r].eager
	}
	return sent, eager, copied
}
