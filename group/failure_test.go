// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// vanish makes a rank of a native group disappear as if its process had died: its sockets end without a shutdown message.
func vanish(t *testing.T, g *Group) {
	t.Helper()
	m, ok := g.mesh.(interface{ Sever() })
	if !ok {
		t.Fatalf("mesh %T cannot be severed", g.mesh)
	}
	g.formed.Failure.StopRecording() // the dead write nothing into the store
	m.Sever()
}

func TestMismatchNamesBothSides(t *testing.T) {
	f32 := func(n int) *tensor.Tensor { return tensor.Must(tensor.New(tensor.Float32, n)) }
	cases := map[string]struct {
		odd  func(context.Context, *Group) *Work
		want []string
	}{
		"operator": {func(ctx context.Context, g *Group) *Work { return g.AllReduce(ctx, f32(4), Max) }, []string{"max", "sum"}},
		"dtype": {func(ctx context.Context, g *Group) *Work {
			return g.AllReduce(ctx, tensor.Must(tensor.New(tensor.Int32, 4)), Sum)
		}, []string{"int32", "float32"}},
		"size":  {func(ctx context.Context, g *Group) *Work { return g.AllReduce(ctx, f32(5), Sum) }, []string{"5", "4"}},
		"large": {func(ctx context.Context, g *Group) *Work { return g.AllReduce(ctx, f32(500_000), Sum) }, []string{"500000", "4"}},
		"kind":  {func(ctx context.Context, g *Group) *Work { return g.Broadcast(ctx, f32(4), 0) }, []string{"broadcast", "all_reduce"}},
		"order": {func(ctx context.Context, g *Group) *Work { return g.Barrier(ctx) }, []string{"barrier", "all_reduce"}},
	}
	for _, transport := range []Transport{TCP, SharedMemory} {
		for name, c := range cases {
			t.Run(string(transport)+"/"+name, func(t *testing.T) {
				groups := newWorld(t, 3, WithTransport(transport))
				ctx := ctxOf(t)
				errs := make([]error, 3)
				_ = each(3, func(r int) error {
					if r == 1 {
						errs[r] = c.odd(ctx, groups[r]).Wait(ctx)
					} else {
						errs[r] = groups[r].AllReduce(ctx, f32(4), Sum).Wait(ctx)
					}
					return nil
				})
				for r, err := range errs {
					if !errors.Is(err, cohort.Mismatch) {
						t.Errorf("rank %d: %v", r, err)
						continue
					}
					if transport == SharedMemory && strings.ContainsAny(c.want[0], "0123456789") && name != "dtype" {
						continue // it counts bytes
					}
					for _, part := range append(c.want, "rank 1") {
						if !strings.Contains(err.Error(), part) {
							t.Errorf("rank %d: %q does not say %q", r, err, part)
						}
					}
				}
				if err := groups[0].Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.Mismatch) ||
					!strings.Contains(err.Error(), "failed before") {
					t.Errorf("later: %v", err)
				}
			})
		}
	}
}

func TestMismatchOfRoots(t *testing.T) {
	for _, n := range []int{4, 300_000} {
		groups := newWorld(t, 2, WithTransport(TCP))
		ctx := ctxOf(t)
		err := each(2, func(r int) error {
			return groups[r].Broadcast(ctx, tensor.Must(tensor.New(tensor.Float32, n)), cohort.Rank(1-r)).Wait(ctx)
		})
		if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "root 0") || !strings.Contains(err.Error(), "root 1") {
			t.Errorf("%d elements: %v", n, err)
		}
	}
}

func TestDeathEndsOperations(t *testing.T) {
	groups := newWorld(t, 3, WithTransport(TCP))
	ctx := ctxOf(t)
	var wg sync.WaitGroup
	began := time.Now()
	works := make([]*Work, 2)
	for r := range works {
		works[r] = groups[r].AllReduce(ctx, from(float32(1)), Sum)
		wg.Go(func() {
			if err := names2(works[r].Wait(ctx)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := groups[r].Recv(ctx, from(float32(1)), cohort.Rank(1-r), 0).Wait(ctx); !errors.Is(err, cohort.PeerLost) {
				t.Errorf("rank %d, later: %v", r, err)
			}
		})
	}
	for _, w := range works {
		testkit.Until(t, "it is run", w.runs)
	}
	vanish(t, groups[2])
	wg.Wait()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestMessagesGoOnWithoutTheDead: a death ends what needs the dead rank, and nothing else.
func TestMessagesGoOnWithoutTheDead(t *testing.T) {
	t.Run("tcp, died", func(t *testing.T) { messagesGoOn(t, TCP, vanish) })
	for _, transport := range transports {
		t.Run(string(transport)+", left", func(t *testing.T) {
			messagesGoOn(t, transport, func(t *testing.T, g *Group) {
				t.Helper()
				must(t, g.Close())
			})
		})
	}
}

// knowing is gloo's mesh of a rank that has seen the end of rank 2 before that of any other.
type knowing struct{ *gloo.Mesh }

func (knowing) Blame(error) error {
	return &cohort.Error{Op: "test", Code: cohort.PeerLost, Rank: 2, Detail: "it went first"}
}

// TestMessageNamesTheRankThatWentFirst, as a collective does, and not the one that only followed.
func TestMessageNamesTheRankThatWentFirst(t *testing.T) {
	t.Parallel()
	groups := newWorld(t, 3, WithTransport(Gloo))
	mesh, ok := groups[0].formed.Mesh.(*gloo.Mesh)
	if !ok {
		t.Fatalf("%T", groups[0].formed.Mesh)
	}
	groups[0].formed.Mesh = knowing{mesh}
	ctx := ctxOf(t)
	message := groups[0].Recv(ctx, from(int64(0)), 1, 0)
	must(t, groups[1].Close())
	must(t, names2(message.Wait(ctx)))
}

func messagesGoOn(t *testing.T, transport Transport, end func(*testing.T, *Group)) {
	t.Helper()
	groups := newWorld(t, 3, WithTransport(transport))
	ctx := ctxOf(t)
	swap := func(r, n, tag int) error {
		got := make([]byte, n)
		send := groups[r].Send(ctx, from(bytes.Repeat([]byte{byte(r + 1)}, n)...), cohort.Rank(1-r), tag)
		if err := groups[r].Recv(ctx, from(got...), cohort.Rank(1-r), tag).Wait(ctx); err != nil {
			return err
		}
		if n > 0 && (got[0] != byte(2-r) || got[n-1] != byte(2-r)) {
			t.Errorf("rank %d got %d", r, got[0])
		}
		return send.Wait(ctx)
	}
	early := groups[0].Recv(ctx, from(float32(1)), 2, 7) // needs the rank that dies
	half := groups[0].Recv(ctx, from(uint8(1)), 1, 9)    // does not
	large := groups[0].Send(ctx, from(make([]byte, 3_000_000)...), 2, 8)
	end(t, groups[2])
	must(t, names2(early.Wait(ctx)))
	must(t, names2(large.Wait(ctx)))
	must(t, each(2, func(r int) error {
		for i, n := range []int{1, 100, 70_000, 0, 3_000_000, 5} {
			if err := swap(r, n, i); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, groups[1].Send(ctx, from(uint8(3)), 0, 9).Wait(ctx))
	must(t, half.Wait(ctx))
	// A message that leaves before the sender has noticed the death may well succeed, so rank 1 notices it first.
	must(t, names2(groups[1].Recv(ctx, from(float32(1)), 2, 7).Wait(ctx)))
	must(t, names2(groups[1].Send(ctx, from(float32(1)), 2, 0).Wait(ctx)))
	// A collective needs everybody: one failed, the group has.
	_ = each(2, func(r int) error {
		if err := names2(groups[r].AllReduce(ctx, tensor.Must(tensor.New(tensor.Float32, 1)), Sum).Wait(ctx)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		if err := swap(r, 1, 99); !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "failed before") {
			t.Errorf("rank %d, later: %v", r, err)
		}
		return nil
	})
}

// TestTheRankWhoseTimeIsOverIsNotBlamed: a rank whose operation takes too long fails the group. It does not know for whom it waited, and
// the others must not take it for the reason.
func TestTheRankWhoseTimeIsOverIsNotBlamed(t *testing.T) {
	t.Parallel()
	for _, transport := range []Transport{SharedMemory, TCP, Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			groups := newWorld(t, 3, WithTransport(transport))
			ctx := ctxOf(t)
			work := groups[2].AllReduce(ctx, from(int64(1)), Sum)
			groups[0].fail(cohort.New("group: test", cohort.DeadlineExceeded, "it took too long"))
			err := work.Wait(ctx)
			var e *cohort.Error
			if !errors.As(err, &e) || e.Code != cohort.DeadlineExceeded || e.Rank != cohort.NoRank ||
				!strings.Contains(err.Error(), "rank 0") {
				t.Errorf("%v (rank %v)", err, e.Rank)
			}
		})
	}
}

func TestTimeoutFailsTheGroup(t *testing.T) {
	groups := newWorld(t, 3, WithTransport(TCP))
	ctx := ctxOf(t)
	err := groups[0].AllReduce(ctx, from(int64(1)), Sum, WithTimeout(50*time.Millisecond)).Wait(ctx)
	if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), "waits for rank") {
		t.Errorf("%v", err)
	}
	for r := 1; r < 3; r++ {
		// it ends when the rank is told
		if err := groups[r].Recv(ctx, from(int64(1)), 0, 0).Wait(ctx); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Errorf("rank %d: %v", r, err)
		}
		if err := groups[r].AllReduce(ctx, from(int64(1)), Sum).Wait(ctx); !errors.Is(err, cohort.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "reported by rank 0") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestMessageTimeoutLeavesTheGroup(t *testing.T) {
	for _, transport := range transports {
		groups := newWorld(t, 2, WithTransport(transport))
		ctx := ctxOf(t)
		err := groups[0].Recv(ctx, from(int64(1)), 1, 4, WithTimeout(30*time.Millisecond)).Wait(ctx)
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.DeadlineExceeded || e.Rank != 1 {
			t.Errorf("%s: %v", transport, err)
		}
		if transport == Gloo {
			continue // the peer was notified of the receive: withdrawing it takes the connection
		}
		must(t, each(2, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) }))
	}
}

func TestAbort(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	recv := groups[0].Recv(ctx, from(int64(0)), 1, 1)
	recv.Abort()
	if err := recv.Wait(ctx); !errors.Is(err, cohort.Aborted) {
		t.Errorf("receive: %v", err)
	}
	must(t, each(2, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) }))
	w := groups[0].AllReduce(ctx, from(int64(0)), Sum)
	w.Abort()
	if err := w.Wait(ctx); !errors.Is(err, cohort.Aborted) {
		t.Errorf("collective: %v", err)
	}
	// What rank 0 had sent before the abort may come first: then the ranks called different operations.
	if err := groups[1].Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.Aborted) && !errors.Is(err, cohort.Mismatch) {
		t.Errorf("peer: %v", err)
	}
}

func TestNewGroupAfterFailure(t *testing.T) {
	for _, transport := range []Transport{TCP, SharedMemory} {
		groups := newWorld(t, 3, WithTransport(transport))
		ctx := ctxOf(t)
		groups[1].AllReduce(ctx, from(int64(0)), Sum).Abort()
		_ = each(3, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) })
		// Rank 1 is left out.
		must(t, each(3, func(r int) error {
			if r == 1 {
				return nil
			}
			sub, err := groups[r].NewGroup(ctx, []cohort.Rank{0, 2}, WithLocalSync())
			if err != nil {
				return err
			}
			defer func() { _ = sub.Close() }()
			x := from(int64(r))
			if err := sub.AllReduce(ctx, x, Sum).Wait(ctx); err != nil {
				return err
			}
			if got := values[int64](t, x); got[0] != 2 {
				t.Errorf("sum %v", got)
			}
			return sub.Barrier(ctx).Wait(ctx)
		}))
	}
}

func TestMonitoredBarrierNamesTheLate(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 4, WithTransport(transport))
			ctx := ctxOf(t)
			errs := make([]error, 4)
			var wg sync.WaitGroup
			for _, r := range []int{0, 2} {
				wg.Go(func() {
					errs[r] = groups[r].MonitoredBarrier(ctx, WithTimeout(150*time.Millisecond), WaitAllRanks())
				})
			}
			wg.Wait()
			if err := errs[0]; !errors.Is(err, cohort.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "ranks 1 and 3 did not reach") || !strings.Contains(err.Error(), "rank 2 did") {
				t.Errorf("rank 0: %v", err)
			}
			if errs[2] == nil {
				t.Error("rank 2 passed")
			}
		})
	}
}

// TestMonitoredBarrierNamesTheLateAtADeadline: the deadline of the context ends the barrier as its own limit does.
func TestMonitoredBarrierNamesTheLateAtADeadline(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		for _, opts := range [][]OpOption{nil, {WaitAllRanks()}} {
			t.Run(fmt.Sprintf("%s, %d options", transport, len(opts)), func(t *testing.T) {
				t.Parallel()
				groups := newWorld(t, 4, WithTransport(transport))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second) // three ranks have to arrive before it ends
				defer cancel()
				errs := make([]error, 4)
				_ = each(3, func(i int) error {
					r := []int{0, 2, 3}[i]
					errs[r] = groups[r].MonitoredBarrier(ctx, opts...)
					return nil
				})
				e := asError(errs[0])
				if e == nil || e.Code != cohort.DeadlineExceeded || e.Rank != 1 || !strings.Contains(e.Error(), "monitored_barrier") ||
					!strings.Contains(e.Error(), "rank 1 had not reached the barrier; ranks 2 and 3 had") {
					t.Errorf("rank 0: %v", errs[0])
				}
				for _, r := range []int{2, 3} {
					if errs[r] == nil || !strings.Contains(errs[r].Error(), "monitored_barrier") {
						t.Errorf("rank %d: %v", r, errs[r])
					}
				}
			})
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	for _, transport := range transports {
		groups := newWorld(t, 2, WithTransport(transport))
		ctx := ctxOf(t)
		recv := groups[0].Recv(ctx, from(int64(1)), 1, 0)
		work := groups[0].AllReduce(ctx, from(int64(1)), Sum)
		done := make(chan error, 2)
		go func() { done <- work.Wait(ctx) }()
		go func() { done <- recv.Wait(ctx) }()
		testkit.Until(t, "it is run", work.runs)
		must(t, groups[0].Close())
		for range 2 {
			if err := <-done; !errors.Is(err, cohort.Closed) {
				t.Errorf("%s: %v", transport, err)
			}
		}
		if err := groups[0].Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.Closed) {
			t.Errorf("%s: after Close: %v", transport, err)
		}
		if err := groups[1].Recv(ctx, from(int64(1)), 0, 7).Wait(ctx); !errors.Is(err, cohort.PeerLost) {
			t.Errorf("%s: the other rank: %v", transport, err)
		}
	}
}

func TestDumpOnFailure(t *testing.T) {
	s := store.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	dumps := make(chan []byte, 2)
	groups := newWorldOver(t, s, 2, WithTransport(TCP), WithDump(func(_ string, data []byte) { dumps <- data }))
	ctx := ctxOf(t)
	must(t, each(2, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) }))
	groups[0].AllReduce(ctx, from(int64(1)), Sum).Abort()
	for range 2 { // both ranks dump
		d, err := flightrec.Parse(<-dumps)
		must(t, err)
		g := d.Groups[0]
		want := 2 - g.Rank // rank 1 has only the barrier
		if len(g.Entries) != want || g.Entries[0].State != flightrec.Completed || g.Entries[0].Op != "barrier" ||
			!strings.Contains(g.Failed, "aborted") {
			t.Errorf("%+v", g)
		}
	}
}

func TestMissingRankIsNamed(t *testing.T) {
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err := New(ctx, s, 0, 3)
	if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), "ranks 1 and 2") {
		t.Errorf("%v", err)
	}
}

// TestTimeoutSaysWhoIsAwaited: nothing shows whether the rank that is awaited is the reason or waits itself. So it is
// said that it is waited for, and not blamed.
func TestTimeoutSaysWhoIsAwaited(t *testing.T) {
	t.Parallel()
	for _, transport := range []Transport{TCP, Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			timesOut(t, "it waits for rank 2", func(ctx context.Context, timeout time.Duration) error {
				return newWorld(t, 3, WithTransport(transport))[0].Broadcast(ctx, from(int64(1)), 2, WithTimeout(timeout)).Wait(ctx)
			})
		})
	}
	t.Run("which waits itself", func(t *testing.T) { // rank 3 is late, and rank 0 answers when all have come
		t.Parallel()
		timesOut(t, "it waits for rank 0", func(ctx context.Context, timeout time.Duration) error {
			groups := newWorld(t, 4, WithTransport(TCP))
			groups[0].Barrier(ctx)
			groups[2].Barrier(ctx)
			return groups[1].Barrier(ctx, WithTimeout(timeout)).Wait(ctx)
		})
	})
}

// timesOut expects that a call ends with its timeout, names the reason and blames no rank. On a busy machine it may not
// have begun when a short one ends.
func timesOut(t *testing.T, why string, call func(ctx context.Context, timeout time.Duration) error) {
	t.Helper()
	ctx := ctxOf(t)
	var err error
	for timeout := 200 * time.Millisecond; timeout < 15*time.Second; timeout *= 4 {
		if err = call(ctx, timeout); err == nil || strings.Contains(err.Error(), why) {
			break
		}
	}
	e, ok := errors.AsType[*cohort.Error](err)
	if !ok || e.Code != cohort.DeadlineExceeded || e.Rank != cohort.NoRank || !strings.Contains(err.Error(), why) {
		t.Errorf("%v", err)
	}
}
