// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// watched is buffers whose memory may still be referenced.
type watched struct{ made, kept atomic.Int32 }

// buffer makes one of at least 16 bytes: smaller ones share memory.
func (w *watched) buffer(n int) []byte {
	b := make([]byte, n)
	w.made.Add(1)
	w.kept.Add(1)
	runtime.AddCleanup(&b[0], func(*watched) { w.kept.Add(-1) }, w)
	return b
}

// gone fails the test if buffers stay referenced.
func (w *watched) gone(t *testing.T, what any) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); w.kept.Load() > 0; time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatalf("%v: %d of %d buffers are kept", what, w.kept.Load(), w.made.Load())
		}
	}
}

// A group that continues keeps nothing of the memory of an operation that has ended.
func TestOperationsReleaseBuffers(t *testing.T) {
	t.Parallel()
	const ranks, large = 3, 3 << 20
	engines := world(t, ranks, nil)
	for i, kind := range []collective.Kind{
		collective.AllReduce, collective.Reduce, collective.ReduceScatter, collective.AllGather,
		collective.AllToAll,
	} {
		for j, size := range []int{ranks * 32, ranks << 10, large} {
			var w watched
			for rank, err := range each(engines, func(e *Engine) error {
				q := &collective.Request{Kind: kind, Tag: uint32(3*i + j), DType: tensor.Uint8, Op: reduce.Sum}
				switch kind {
				case collective.ReduceScatter:
					q.In, q.Out = w.buffer(size), w.buffer(size/ranks)
				case collective.AllGather:
					q.In, q.Out = w.buffer(size/ranks), w.buffer(size)
				case collective.AllToAll:
					q.In, q.Out = w.buffer(size), w.buffer(size)
				default:
					q.Out = w.buffer(size)
				}
				return e.Run(context.Background(), q)
			}) {
				if err != nil {
					t.Fatalf("%v of %d bytes, rank %d: %v", kind, size, rank, err)
				}
			}
			w.gone(t, kind)
		}
	}
	runtime.KeepAlive(engines)
}

// An operation that was interrupted has ended when the group has.
func TestInterruptedOperationReleasesItsBuffer(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(e *Engine, q *collective.Request){
		"failed": func(e *Engine, q *collective.Request) {
			e.Fail(errors.New("enough"))
			_ = e.Run(context.Background(), q) // as a group does
		},
		"closed": func(e *Engine, _ *collective.Request) { _ = e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := world(t, 2, nil)
			var w watched
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Millisecond, cancel)
			q := &collective.Request{Kind: collective.AllReduce, DType: tensor.Uint8, Op: reduce.Sum, Out: w.buffer(1 << 20)}
			if err := engines[0].Run(ctx, q); !errors.As(err, new(*collective.Interrupted)) {
				t.Fatal(err)
			}
			end(engines[0], q)
			w.gone(t, collective.AllReduce)
			runtime.KeepAlive(engines)
		})
	}
}

func TestMessagesReleaseBuffers(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	for _, size := range []int{32, 1 << 20} {
		var w watched
		for rank, err := range each(engines, func(e *Engine) error {
			send, recv := &transport.Op{Peer: 1 - e.rank, Buf: w.buffer(size)}, &transport.Op{Peer: 1 - e.rank, Buf: w.buffer(size)}
			e.mesh.Recv(recv)
			e.mesh.Send(send)
			return errors.Join(e.mesh.Wait(ctx, send), e.mesh.Wait(ctx, recv))
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", rank, err)
			}
		}
		w.gone(t, size)
	}
	runtime.KeepAlive(engines)
}
