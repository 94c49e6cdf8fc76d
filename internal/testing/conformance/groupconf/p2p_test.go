// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// events are the sizes of the operations that each rank of a world reports, by kind.
type events struct {
	mu struct {
		sync.Mutex
		bytes map[cohort.Rank]map[observe.Kind][]int64
	}
}

func (e *events) hook() group.Option {
	e.mu.bytes = map[cohort.Rank]map[observe.Kind][]int64{}
	return group.WithHook(func(v observe.Event) {
		if v.Phase != observe.End || v.Err != nil || v.Dur < 0 {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.mu.bytes[v.Rank] == nil {
			e.mu.bytes[v.Rank] = map[observe.Kind][]int64{}
		}
		e.mu.bytes[v.Rank][v.Kind] = append(e.mu.bytes[v.Rank][v.Kind], v.Bytes)
	})
}

// want checks that each rank has reported one operation of a kind for each of the sizes that it should have, in any order.
func (e *events) want(t *testing.T, kind observe.Kind, bytes func(rank int) []int64) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for r := range worldSize {
		got, want := slices.Sorted(slices.Values(e.mu.bytes[cohort.Rank(r)][kind])), slices.Sorted(slices.Values(bytes(r)))
		if !slices.Equal(got, want) {
			t.Errorf("%s of rank %d: sizes %v, want %v; all: %v", kind, r, got, want, e.mu.bytes[cohort.Rank(r)])
		}
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

// cubeBytes is the size of a cube of float32.
func cubeBytes(size int) int64 { return 4 * int64(size*size*size) }

// TestSendRecv: each rank in turn sends to all others, which receive.
func TestSendRecv(t *testing.T) {
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		for src := range g.Size() {
			if cohort.Rank(src) != g.Rank() {
				if err := recvCube(ctx, g, src+1, cohort.Rank(src), 0); err != nil {
					return err
				}
				continue
			}
			for dst := range g.Size() {
				if dst == src {
					continue
				}
				if err := g.Send(ctx, cube(src+1, float32(src)), cohort.Rank(dst), 0).Wait(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}, func(t *testing.T, e *events) {
		t.Helper()
		e.want(t, "group.send", func(rank int) []int64 { return slices.Repeat([]int64{cubeBytes(rank + 1)}, worldSize-1) })
		e.want(t, "group.recv", func(rank int) (sizes []int64) {
			for src := range worldSize {
				if src != rank {
					sizes = append(sizes, cubeBytes(src+1))
				}
			}
			return sizes
		})
	})
}

// recvCube receives a cube that has the rank of its sender in it.
func recvCube(ctx context.Context, g *group.Group, size int, src cohort.Rank, tag int) error {
	out := cube(size, float32(-1))
	w := g.Recv(ctx, out, src, tag)
	if err := w.Wait(ctx); err != nil {
		return err
	}
	if from, err := w.SourceRank(); from != src {
		return fmt.Errorf("a message of rank %d has the source %d, %w", src, from, err)
	}
	return wantAll("received", out, float32(src), size, size, size)
}

// TestSendRecvWithTag: each rank in turn receives from all others, with their ranks as tags.
func TestSendRecvWithTag(t *testing.T) {
	const size = 10
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		for dst := range cohort.Rank(g.Size()) {
			if dst != g.Rank() {
				if err := g.Send(ctx, cube(size, float32(g.Rank())), dst, int(g.Rank())).Wait(ctx); err != nil {
					return err
				}
				continue
			}
			for src := range cohort.Rank(g.Size()) {
				if src == dst {
					continue
				}
				if err := recvCube(ctx, g, size, src, int(src)); err != nil {
					return err
				}
			}
		}
		return nil
	}, func(t *testing.T, e *events) {
		t.Helper()
		each := func(int) []int64 { return slices.Repeat([]int64{cubeBytes(size)}, worldSize-1) }
		e.want(t, "group.send", each)
		e.want(t, "group.recv", each)
	})
}

// TestTagsTellMessagesApart: a receive takes the message with its tag, not the one that was sent first.
func TestTagsTellMessagesApart(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		size := cohort.Rank(g.Size())
		next, before := (g.Rank()+1)%size, (g.Rank()+size-1)%size
		var sent []*group.Work
		for _, tag := range []int{7, 8} {
			sent = append(sent, g.Send(ctx, full(float32(tag), 3), next, tag))
		}
		for _, tag := range []int{8, 7} {
			x := full(float32(0), 3)
			if err := g.Recv(ctx, x, before, tag).Wait(ctx); err != nil {
				return err
			}
			if err := wantAll(fmt.Sprint("tag ", tag), x, float32(tag), 3); err != nil {
				return err
			}
		}
		return group.WaitAll(ctx, sent...)
	})
}

func TestSendRecvAnySource(t *testing.T) {
	const size = 10
	var mu sync.Mutex
	sources := map[int]int{}
	eachTransport(t, func(ctx context.Context, g *group.Group) error {
		for turn := range g.Size() {
			if cohort.Rank(turn) != g.Rank() {
				for range 2 {
					if err := g.Send(ctx, cube(size, float32(g.Rank())), cohort.Rank(turn), 0).Wait(ctx); err != nil {
						return err
					}
				}
				continue
			}
			for range 2 * (g.Size() - 1) {
				out := cube(size, float32(-1))
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
		each := func(int) []int64 { return slices.Repeat([]int64{cubeBytes(size)}, 2*(worldSize-1)) }
		e.want(t, "group.send", each)
		e.want(t, "group.recv_any", each)
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
			works = append(works, g.Send(ctx, cube(dst, float32(10)), cohort.Rank(dst), 0))
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil || !w.Completed() {
				return fmt.Errorf("completed %v, %w", w.Completed(), err)
			}
		}
		return nil
	}, func(t *testing.T, e *events) {
		t.Helper()
		e.want(t, "group.send", func(rank int) []int64 {
			if rank > 0 {
				return nil
			}
			return []int64{cubeBytes(1), cubeBytes(2), cubeBytes(3)}
		})
		e.want(t, "group.recv", func(rank int) []int64 {
			if rank == 0 {
				return nil
			}
			return []int64{cubeBytes(rank)}
		})
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
			works[src] = g.Recv(ctx, outs[src], cohort.Rank(src), 0)
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
				case cohort.Rank(peer) == g.Rank():
				case send:
					works = append(works, g.Send(ctx, full(int64(g.Rank()), 1), cohort.Rank(peer), 0))
				default:
					works = append(works, g.Recv(ctx, outs[peer], cohort.Rank(peer), 0))
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
			if cohort.Rank(peer) == g.Rank() {
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
			if cohort.Rank(peer) == g.Rank() {
				continue
			}
			outs[peer] = cube(peer+1, float32(-1))
			ops = append(ops,
				group.P2POp{Op: group.OpRecv, Tensor: outs[peer], Peer: cohort.Rank(peer), Tag: tag(peer)},
				group.P2POp{
					Op: group.OpSend, Tensor: cube(int(g.Rank()+1), float32(g.Rank())), Peer: cohort.Rank(peer),
					Tag: tag(int(g.Rank())),
				})
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

// TestBatchChecks: a batch with an operation that is not a message posts nothing; so does one to oneself.
func TestBatchChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		x, next := full(int64(0), 1), (g.Rank()+1)%cohort.Rank(g.Size())
		for words, op := range map[string]group.P2POp{
			"a batch takes sends and receives": {Op: group.OpBroadcast, Tensor: x, Peer: next},
			"no tensor":                        {Op: group.OpSend, Peer: next},
			"is this rank itself":              {Op: group.OpSend, Tensor: x, Peer: g.Rank()},
		} {
			for _, list := range [][]group.P2POp{{op}, {{Op: group.OpSend, Tensor: x, Peer: next}, op}} {
				works := g.Batch(ctx, list)
				if len(works) == 0 {
					return errors.New("nothing tells of the refusal")
				}
				for _, w := range works {
					if err := w.Wait(ctx); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), words) {
						return fmt.Errorf("%w, want a refusal: %s", err, words)
					}
				}
			}
		}
		return untouched(ctx, g)
	})
}
