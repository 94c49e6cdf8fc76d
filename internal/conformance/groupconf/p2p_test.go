// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// events counts the operations that a world reports, by kind, and their bytes.
type events struct {
	mu struct {
		sync.Mutex
		count map[observe.Kind]int
		bytes map[observe.Kind]int64
	}
}

func (e *events) hook() group.Option {
	e.mu.count, e.mu.bytes = map[observe.Kind]int{}, map[observe.Kind]int64{}
	return group.WithHook(func(v observe.Event) {
		if v.Phase != observe.End || v.Err != nil {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mu.count[v.Kind]++
		e.mu.bytes[v.Kind] += v.Bytes
	})
}

// want checks the number of events of a kind and their bytes.
func (e *events) want(t *testing.T, kind observe.Kind, count int, bytes int64) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.count[kind] != count || e.mu.bytes[kind] != bytes {
		t.Errorf("%s: %d events with %d bytes, want %d with %d; all: %v", kind, e.mu.count[kind], e.mu.bytes[kind], count, bytes, e.mu.count)
	}
}

// eachTransport runs a world per transport and checks its events afterwards.
func eachTransport(t *testing.T, f func(ctx context.Context, g *group.Group) error, check func(t *testing.T, e *events)) {
	t.Helper()
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			var e events
			runOver(t, transport, worldSize, f, e.hook())
			check(t, &e)
		})
	}
}

// messages is what all ranks together send where each sends to each other one.
const messages = worldSize * (worldSize - 1)

// cubes is the size of the messages where rank r sends (r+1)^3 float32 to each other one.
const cubes = 4 * (worldSize - 1) * (1 + 8 + 27 + 64)

func TestSendRecv(t *testing.T) {
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		return sendRecv(ctx, g, func(int) int { return 0 })
	}, func(t *testing.T, e *events) {
		t.Helper()
		e.want(t, "group.send", messages, cubes)
		e.want(t, "group.recv", messages, cubes)
	})
}

func TestSendRecvWithTag(t *testing.T) {
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		return sendRecv(ctx, g, func(sender int) int { return sender })
	}, func(t *testing.T, e *events) {
		t.Helper()
		e.want(t, "group.send", messages, cubes)
		e.want(t, "group.recv", messages, cubes)
	})
}

// sendRecv: each rank in turn sends to all others, which receive.
func sendRecv(ctx context.Context, g *group.Group, tag func(sender int) int) error {
	for src := range g.Size() {
		if dist.Rank(src) != g.Rank() {
			out := cube(src+1, float32(-1))
			w := g.Recv(ctx, out, dist.Rank(src), tag(src))
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if from, err := w.SourceRank(); from != dist.Rank(src) {
				return fmt.Errorf("a message of rank %d has the source %d, %w", src, from, err)
			}
			if err := wantAll("received", out, float32(src)); err != nil {
				return err
			}
			continue
		}
		for dst := range g.Size() {
			if dst == src {
				continue
			}
			if err := g.Send(ctx, cube(src+1, float32(src)), dist.Rank(dst), tag(src)).Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestSendRecvAnySource(t *testing.T) {
	const size = 10
	var mu sync.Mutex
	sources := map[int]int{}
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		for turn := range g.Size() {
			if dist.Rank(turn) != g.Rank() {
				for range 2 {
					if err := g.Send(ctx, full(float32(g.Rank()), size), dist.Rank(turn), 0).Wait(ctx); err != nil {
						return err
					}
				}
				continue
			}
			for range 2 * (g.Size() - 1) {
				out := full(float32(-1), size)
				w := g.RecvAny(ctx, out, 0)
				if err := w.Wait(ctx); err != nil {
					return err
				}
				from, err := w.SourceRank()
				if err != nil {
					return err
				}
				if err := wantAll("received", out, float32(from)); err != nil {
					return err
				}
				mu.Lock()
				sources[int(from)]++
				mu.Unlock()
			}
		}
		return nil
	}, func(t *testing.T, e *events) {
		t.Helper()
		e.want(t, "group.send", 2*messages, 2*messages*4*size)
		e.want(t, "group.recv_any", 2*messages, 2*messages*4*size)
		for r := range worldSize { // as much arrived from each as each has sent
			if sources[r] != 2*(worldSize-1) {
				t.Errorf("%d messages from rank %d", sources[r], r)
			}
		}
		clear(sources)
	})
}

// TestIsend: rank 0 has messages to all others under way at once.
func TestIsend(t *testing.T) {
	const bytes = 4 * (1 + 8 + 27)
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		if g.Rank() > 0 {
			out := cube(int(g.Rank()), float32(-1))
			if err := g.Recv(ctx, out, 0, 0).Wait(ctx); err != nil {
				return err
			}
			return wantAll("received", out, float32(10))
		}
		var works []*group.Work
		for dst := 1; dst < g.Size(); dst++ {
			works = append(works, g.Send(ctx, cube(dst, float32(10)), dist.Rank(dst), 0))
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil || !w.Completed() {
				return fmt.Errorf("completed %v, %w", w.Completed(), err)
			}
		}
		return nil
	}, func(t *testing.T, e *events) {
		t.Helper()
		e.want(t, "group.send", worldSize-1, bytes)
		e.want(t, "group.recv", worldSize-1, bytes)
	})
}

// TestIrecv: rank 0 waits for messages from all others at once.
func TestIrecv(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		if g.Rank() > 0 {
			return g.Send(ctx, cube(int(g.Rank()), float32(g.Rank())), 0, 0).Wait(ctx)
		}
		outs, works := make([]*tensor.Tensor, g.Size()), make([]*group.Work, g.Size())
		for src := 1; src < g.Size(); src++ {
			outs[src] = cube(src, float32(-1))
			works[src] = g.Recv(ctx, outs[src], dist.Rank(src), 0)
		}
		for src := 1; src < g.Size(); src++ {
			if err := works[src].Wait(ctx); err != nil || !works[src].Completed() {
				return fmt.Errorf("completed %v, %w", works[src].Completed(), err)
			}
			if err := wantAll("received", outs[src], float32(src)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestSendRecvAllToAll: every rank has sends to and receives from all others under way at once.
func TestSendRecvAllToAll(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		outs := room(g.Size())
		var works []*group.Work
		for _, send := range []bool{true, false} {
			for peer := range g.Size() {
				switch {
				case dist.Rank(peer) == g.Rank():
				case send:
					works = append(works, g.Send(ctx, full(int64(g.Rank()), 1), dist.Rank(peer), 0))
				default:
					works = append(works, g.Recv(ctx, outs[peer], dist.Rank(peer), 0))
				}
			}
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil || !w.Completed() {
				return fmt.Errorf("completed %v, %w", w.Completed(), err)
			}
		}
		for peer, out := range outs {
			want := int64(peer)
			if dist.Rank(peer) == g.Rank() {
				want = -1
			}
			if err := wantAll(fmt.Sprint("from rank ", peer), out, want); err != nil {
				return err
			}
		}
		return nil
	})
}

// batch sends to and receives from all others in one batch.
func batch(t *testing.T, tag func(sender int) int) {
	t.Helper()
	run(t, func(ctx context.Context, g *group.Group) error {
		var ops []group.P2POp
		outs := make([]*tensor.Tensor, g.Size())
		for peer := range g.Size() {
			if dist.Rank(peer) == g.Rank() {
				continue
			}
			outs[peer] = cube(peer+1, float32(-1))
			ops = append(ops,
				group.P2POp{Op: group.OpRecv, Tensor: outs[peer], Peer: dist.Rank(peer), Tag: tag(peer)},
				group.P2POp{Op: group.OpSend, Tensor: cube(int(g.Rank()+1), float32(g.Rank())), Peer: dist.Rank(peer), Tag: tag(int(g.Rank()))})
		}
		if err := group.WaitAll(ctx, g.Batch(ctx, ops)...); err != nil {
			return err
		}
		for peer, out := range outs {
			if out == nil {
				continue
			}
			if err := wantAll(fmt.Sprint("from rank ", peer), out, float32(peer)); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestBatch(t *testing.T)     { batch(t, func(int) int { return 0 }) }
func TestBatchTags(t *testing.T) { batch(t, func(sender int) int { return sender }) }

// TestBatchChecks: a batch with an operation that is no message posts nothing; so does one to oneself.
func TestBatchChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		x, next := full(int64(0), 1), (g.Rank()+1)%dist.Rank(g.Size())
		for name, op := range map[string]group.P2POp{
			"a broadcast": {Op: group.OpBroadcast, Tensor: x, Peer: next},
			"no tensor":   {Op: group.OpSend, Peer: next},
			"oneself":     {Op: group.OpSend, Tensor: x, Peer: g.Rank()},
		} {
			for _, w := range g.Batch(ctx, []group.P2POp{{Op: group.OpSend, Tensor: x, Peer: next}, op}) {
				if err := w.Wait(ctx); !errors.Is(err, dist.InvalidArgument) {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		return untouched(ctx, g)
	})
}
