// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/tensor"
)

// TestWaitEndsWithAnyCause: the end of a wait ends the wait and nothing else, whatever the cause of its context is.
func TestWaitEndsWithAnyCause(t *testing.T) {
	causes := map[string]error{
		"none": nil, "plain": errors.New("enough"), "lost": &cohort.Error{Op: "another group", Code: cohort.PeerLost, Rank: 1},
		"aborted": cohort.Aborted, "late": cohort.DeadlineExceeded, "closed": cohort.New("x", cohort.Closed, ""),
	}
	for _, transport := range transports {
		for name, cause := range causes {
			t.Run(string(transport)+" "+name, func(t *testing.T) {
				groups := newWorld(t, 2, WithTransport(transport))
				ctx := ctxOf(t)
				for _, post := range []func(*Group) *Work{
					func(g *Group) *Work { return g.AllReduce(ctx, from(1.0), Sum) },
					func(g *Group) *Work { return g.Recv(ctx, from(1.0), 1-g.Rank(), 3) },
				} {
					w := post(groups[0])
					ended, cancel := context.WithCancelCause(ctx)
					waited := make(chan error, 1)
					go func() { waited <- w.Wait(ended) }()
					runtime.Gosched()
					cancel(cause)
					if err := <-waited; !errors.Is(err, context.Canceled) || w.Completed() {
						t.Errorf("the wait ended with %v, completed %v", err, w.Completed())
					}
					if w.OpType() == OpRecv {
						must(t, groups[1].Send(ctx, from(2.0), 0, 3).Wait(ctx))
					} else {
						must(t, post(groups[1]).Wait(ctx))
					}
					must(t, w.Wait(ctx))
				}
				if err := errors.Join(groups[0].Err(), groups[1].Err()); err != nil {
					t.Errorf("the group has failed: %v", err)
				}
			})
		}
	}
}

// TestMessageDoneInsideTheCall: a message that is over when Send or Recv returns is over for everybody.
func TestMessageDoneInsideTheCall(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport))
			ctx := ctxOf(t)
			for i := range 50 {
				send := groups[0].Send(ctx, from(float64(i)), 1, 0)
				room := from(0.0)
				recv := groups[1].Recv(ctx, room, 0, 0)
				for name, w := range map[string]*Work{"send": send, "recv": recv} {
					called := make(chan error, 1)
					w.OnDone(func(w *Work) { called <- w.Err() })
					select {
					case err := <-called:
						must(t, err)
					case <-time.After(20 * time.Second):
						t.Fatalf("%s %d: no callback", name, i)
					}
					<-w.Done()
					if _, err := w.Future().Await(ctx); err != nil {
						t.Fatal(err)
					}
				}
				if got := values[float64](t, room)[0]; got != float64(i) {
					t.Fatalf("message %d brought %v", i, got)
				}
			}
			for r, g := range groups {
				data, err := g.Trace()
				must(t, err)
				dump, err := flightrec.Parse(data)
				must(t, err)
				for _, e := range dump.Groups[0].Entries {
					if e.State != flightrec.Completed {
						t.Fatalf("rank %d: the flight recorder shows %s %d, which is over, as %v", r, e.Op, e.Seq, e.State)
					}
				}
			}
		})
	}
}

// TestProfilerAndReuse: what the profiler looks at stays as it is when the Work is used again. It needs the race detector, and
// a transport on which another goroutine than the waiter's runs the operations.
func TestProfilerAndReuse(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	groups := newWorld(t, 2, WithTransport(Gloo), WithProfiler(func(w *Work) {
		mu.Lock()
		defer mu.Unlock()
		seen[fmt.Sprint(w.OpType(), w.Completed(), w.Err(), w.Duration() > 0)]++
		if w.OpType() == OpAllReduce {
			if out, err := w.Result(); err != nil || len(out) != 1 {
				t.Errorf("result %v, %v", out, err)
			}
		}
	}))
	ctx := ctxOf(t)
	const rounds = 200
	must(t, each(2, func(r int) error {
		var w *Work
		for i := range rounds {
			opts := []OpOption{}
			if w != nil {
				opts = append(opts, Reuse(w))
			}
			if i%2 == 0 {
				w = groups[r].AllReduce(ctx, from(1.0), Sum, opts...)
			} else {
				w = groups[r].Barrier(ctx, opts...)
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}))
	closeAll(groups)
	mu.Lock()
	defer mu.Unlock()
	if seen["all_reduce true <nil> true"] != rounds || seen["barrier true <nil> true"] != rounds {
		t.Errorf("the profiler saw %v", seen)
	}
}

// TestCloseEndsAnInterruptedOperation: an operation that its waiter left in the middle ends with the group, and Close returns
// after that.
func TestCloseEndsAnInterruptedOperation(t *testing.T) {
	for _, transport := range transports {
		for _, large := range []bool{false, true} {
			t.Run(fmt.Sprint(transport, " large ", large), func(t *testing.T) {
				for range 20 {
					groups := newWorld(t, 2, WithTransport(transport))
					ctx := ctxOf(t)
					n := 1
					if large {
						n = 1 << 20
					}
					x := tensor.Must(tensor.New(tensor.Float32, n))
					works := []*Work{groups[0].AllReduce(ctx, x, Sum), groups[0].Barrier(ctx)}
					ended, cancel := context.WithCancel(ctx)
					var waiters sync.WaitGroup
					for _, w := range works {
						waiters.Go(func() { _ = w.Wait(ended) })
					}
					runtime.Gosched()
					waiters.Go(cancel)
					must(t, groups[0].Close())
					for i, w := range works {
						if !w.Completed() || !errors.Is(w.Err(), cohort.Closed) {
							t.Fatalf("operation %d after Close: completed %v, %v", i, w.Completed(), w.Err())
						}
					}
					waiters.Wait()
					must(t, groups[1].Close())
				}
			})
		}
	}
}

// TestHookMayClose: those who are notified of an operation hold nothing that Close waits for.
func TestHookMayClose(t *testing.T) {
	var g *Group
	closed := make(chan struct{})
	groups := newWorld(t, 1, WithProfiler(func(*Work) {
		_ = g.Close()
		close(closed)
	}))
	g = groups[0]
	ctx := ctxOf(t)
	must(t, g.Barrier(ctx).Wait(ctx))
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for the one who calls it")
	}
}
