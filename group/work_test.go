// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

func TestWorkLife(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	x := from(int64(1))
	w := groups[0].AllReduce(ctx, x, Sum)
	if w.Completed() || w.Success() || w.Err() != nil {
		t.Errorf("a running operation: completed %v, success %v, error %v", w.Completed(), w.Success(), w.Err())
	}
	if _, err := w.Result(); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("result of a running operation: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	if err := w.Wait(short); !errors.Is(err, context.DeadlineExceeded) || w.Completed() {
		t.Errorf("a wait that ended: %v, completed %v", err, w.Completed())
	}
	calls := make(chan *Work, 8)
	for range 3 {
		w.OnDone(func(w *Work) { calls <- w })
	}
	future := w.Future()
	if w.Future() != future {
		t.Error("two futures")
	}
	must(t, groups[1].AllReduce(ctx, from(int64(2)), Sum).Wait(ctx))
	must(t, w.Wait(ctx))
	must(t, w.Wait(ctx)) // again
	<-w.Done()
	out, err := w.Result()
	must(t, err)
	if len(out) != 1 || out[0] != x || values[int64](t, x)[0] != 3 {
		t.Errorf("result %v", out)
	}
	if v, err := future.Await(ctx); err != nil || v[0] != x {
		t.Errorf("future: %v %v", v, err)
	}
	w.OnDone(func(w *Work) { calls <- w })
	for range 4 {
		if seen := <-calls; !seen.Success() || seen.OpType() != OpAllReduce || seen.Duration() != w.Duration() {
			t.Errorf("a callback saw %v, %v", seen.OpType(), seen.Err())
		}
	}
	if !w.Success() || w.OpType() != OpAllReduce || w.Seq() != 0 || w.Duration() <= 0 {
		t.Errorf("success %v, %v %d, %v", w.Success(), w.OpType(), w.Seq(), w.Duration())
	}
	if _, err := w.SourceRank(); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("source of a collective: %v", err)
	}
	w.Abort() // nothing happens
	if groups[0].Err() != nil {
		t.Error("abort of a complete operation failed the group")
	}
}

// TestAWaitThatEndedNamesItsOperation: the log of a rank that gave up waiting says for what.
func TestAWaitThatEndedNamesItsOperation(t *testing.T) {
	for _, transport := range []Transport{SharedMemory, TCP, Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			g := newWorld(t, 2, WithTransport(transport))[0]
			preempted := errors.New("the job is preempted")
			for _, c := range []struct {
				want string
				work *Work
			}{
				{"all_reduce 0 of group 0", g.AllReduce(ctx, from(int64(1)), Sum)},
				{"broadcast 1 of group 0", g.Broadcast(ctx, from(int64(1)), 1)}, // its waiter runs the first
				{"recv 0 of group 0", g.Recv(ctx, from(int64(1)), 1, 7)},
				{"unknown", FromFuture(cohort.NewPromise[[]*tensor.Tensor]().Future())},
			} {
				short, cancel := context.WithTimeoutCause(ctx, 5*time.Millisecond, preempted)
				defer cancel()
				want := "group: wait for " + c.want + ": timeout: the job is preempted"
				if err := c.work.Wait(short); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, preempted) ||
					err.Error() != want {
					t.Errorf("%v, want %q", err, want)
				}
			}
		})
	}
}

func TestFromFuture(t *testing.T) {
	f := cohort.NewPromise[[]*tensor.Tensor]()
	w := FromFuture(f.Future())
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	x := from(1.5)
	f.Complete([]*tensor.Tensor{x}, nil)
	must(t, w.Wait(context.Background()))
	if out, err := w.Result(); err != nil || out[0] != x || w.Future() != f.Future() {
		t.Errorf("%v %v", out, err)
	}
}

func TestArgumentErrorsTakeNoNumber(t *testing.T) {
	g := newWorld(t, 2, WithTransport(TCP))[0]
	ctx := ctxOf(t)
	x, y := from(float32(1)), from(int32(1))
	for name, w := range map[string]*Work{
		"nil":          g.AllReduce(ctx, nil, Sum),
		"operator":     g.AllReduce(ctx, x, And),
		"unknown":      g.AllReduce(ctx, x, 77),
		"root":         g.Broadcast(ctx, x, 2),
		"list":         g.AllGather(ctx, []*tensor.Tensor{x}, x),
		"types":        g.AllGather(ctx, []*tensor.Tensor{x, y}, x),
		"size":         g.AllGatherInto(ctx, x, x),
		"split":        g.AllToAllInto(ctx, from(1.0, 2.0), from(1.0, 2.0), []int{1, 1}, []int{3, -1}),
		"self":         g.Send(ctx, x, 0, 0),
		"tag":          g.Send(ctx, x, 1, -1),
		"no such rank": g.Recv(ctx, x, 5, 0),
		"scatter":      g.Scatter(ctx, x, nil, 0),
		"no root":      g.Gather(ctx, []*tensor.Tensor{x, x}, x, 1),
		"coalesced":    g.AllReduceCoalesced(ctx, nil, Sum),
	} {
		if !w.Completed() || !errors.Is(w.Err(), cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, w.Err())
		}
	}
	if g.Seq() != 0 || g.Err() != nil {
		t.Errorf("sequence %d, failure %v", g.Seq(), g.Err())
	}
}

func TestQueueIsBounded(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP), WithQueue(3))
	ctx := ctxOf(t)
	var works []*Work
	for range 3 {
		works = append(works, groups[0].Recv(ctx, from(int64(0)), 1, 0))
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if w := groups[0].Recv(short, from(int64(0)), 1, 0); !errors.Is(w.Err(), context.DeadlineExceeded) {
		t.Errorf("the fourth: %v", w.Err())
	}
	var wg sync.WaitGroup
	wg.Go(func() { works = append(works, groups[0].Recv(ctx, from(int64(0)), 1, 0)) }) // waits for its place
	for i := range 4 {
		must(t, groups[1].Send(ctx, from(int64(i)), 0, 0).Wait(ctx))
	}
	wg.Wait()
	must(t, WaitAll(ctx, works...))
}

func TestOperationsRunWithoutWaiters(t *testing.T) {
	for _, transport := range transports {
		groups := newWorld(t, 2, WithTransport(transport))
		ctx := ctxOf(t)
		works := make([]*Work, 2)
		for r := range works {
			works[r] = groups[r].AllReduce(ctx, from(int64(1)), Sum)
		}
		send, recv := groups[0].Send(ctx, from(int64(1)), 1, 0), groups[1].Recv(ctx, from(int64(0)), 0, 0)
		for _, w := range append(works, send, recv) {
			select {
			case <-w.Done():
				must(t, w.Err())
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: %v does not run unless a goroutine waits", transport, w.OpType())
			}
		}
	}
}

// A program that waits for each operation leaves it to the waiter to run it. The second one that is posted without a wait
// shows that it does not, and a goroutine must run both at once.
func TestBurstIsNotLeftToTheClock(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	g := groups[0]
	g.mu.Lock()
	for g.mu.sched.Eager() { // as after a few operations that were waited for at once
		g.mu.sched.Learn(true)
	}
	g.mu.Unlock()
	// Rank 1 is not there yet: what rank 0 posts stays posted.
	works := []*Work{g.Barrier(ctx), g.Barrier(ctx), g.Barrier(ctx)} // the clock may take one of them at any time
	g.mu.Lock()
	eager := g.mu.sched.Eager()
	g.mu.Unlock()
	if !eager {
		t.Error("operations without a waiter are left to the timer")
	}
	works = append(works, groups[1].Barrier(ctx), groups[1].Barrier(ctx), groups[1].Barrier(ctx))
	must(t, WaitAll(ctx, works...))
}

func TestEventsAndProfiler(t *testing.T) {
	var mu sync.Mutex
	events, profiled := map[string]int{}, 0
	groups := newWorld(t, 2, WithTransport(TCP), WithHook(func(e observe.Event) {
		mu.Lock()
		defer mu.Unlock()
		events[string(e.Kind)+" "+e.Phase.String()]++
	}), WithProfiler(func(*Work) {
		mu.Lock()
		defer mu.Unlock()
		profiled++
	}))
	ctx := ctxOf(t)
	must(t, each(2, func(r int) error { return groups[r].AllReduce(ctx, from(int64(1)), Sum).Wait(ctx) }))
	mu.Lock()
	defer mu.Unlock()
	if events["group.all_reduce begin"] != 2 || events["group.all_reduce end"] != 2 || profiled != 2 {
		t.Errorf("events %v, profiled %d", events, profiled)
	}
}

// The inner loop of a program that reuses its Work allocates nothing.
func TestHotPathAllocatesNothing(t *testing.T) {
	for _, transport := range []Transport{TCP, SharedMemory} {
		groups := newWorld(t, 2, WithTransport(transport))
		ctx := context.Background()
		tensors := []*tensor.Tensor{from(make([]float32, 256)...), from(make([]float32, 256)...)}
		reuse := make([][]OpOption, 2)
		for r := range reuse {
			w := groups[r].newWork(OpBarrier, nil)
			w.complete(nil)
			reuse[r] = []OpOption{Reuse(w)}
		}
		// The other rank runs as many as the benchmark and its warm-up do.
		const runs = 200
		var wg sync.WaitGroup
		wg.Go(func() {
			for range runs + 1 {
				if err := groups[1].AllReduce(ctx, tensors[1], Sum, reuse[1]...).Wait(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
		allocs := testing.AllocsPerRun(runs, func() {
			if err := groups[0].AllReduce(ctx, tensors[0], Sum, reuse[0]...).Wait(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if allocs >= 1 {
			t.Errorf("%s: %v allocations per operation of both ranks", transport, allocs)
		}
	}
}
