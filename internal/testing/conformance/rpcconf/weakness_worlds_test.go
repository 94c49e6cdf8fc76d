// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

// A creation at oneself whose handle is dropped, or whose time is over, while the function runs.
func TestW15RemoteToSelf(t *testing.T) {
	w := start(t, 1)
	n := w.nodes[0]
	release := make(chan struct{})
	ended := make(chan struct{}, 2)
	n.reg.MustHandle("t.slow", func() int { <-release; ended <- struct{}{}; return 42 })
	dropped, err := rpc.Remote[int](w.ctx, n.Agent, n.Name(), "t.slow")
	must(t, err)
	must(t, dropped.Close())
	kept, err := rpc.Remote[int](w.ctx, n.Agent, n.Name(), "t.slow")
	must(t, err)
	_, err = kept.Fetch(within50ms(w.ctx, t))
	wantErr(t, err, cohort.DeadlineExceeded)
	close(release)
	<-ended
	<-ended
	if v, err := kept.Fetch(w.ctx); err != nil || v != 42 {
		t.Errorf("got %v, %v", v, err)
	}
	must(t, kept.Close())
	gone(t, n)
	// the dropped one ends when its function has
	testkit.Until(t, "nothing is left", func() bool { return len(n.References().Objects) == 0 })
	w.shutdown()
}

// References work after a shutdown and a second start in the same process.
func TestW16SecondWorld(t *testing.T) {
	first := start(t, 2)
	old, err := rpc.Remote[int](first.ctx, first.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	must(t, old.Confirmed(first.ctx))
	first.shutdown()
	second := start(t, 2)
	ref, err := rpc.Remote[int](second.ctx, second.nodes[0].Agent, name(1), "t.echo", 8)
	must(t, err)
	if v, err := ref.Fetch(second.ctx); err != nil || v != 8 {
		t.Errorf("got %v, %v", v, err)
	}
	if v, err := old.Fetch(second.ctx); err == nil {
		t.Errorf("a reference of the first world gave %v", v)
	}
	must(t, ref.Close())
	gone(t, second.nodes[1]) // PyTorch's owner keeps it for ever
	second.shutdown()
}

// A worker restarts under its name: ids begin again, but old references do not reach the new objects.
func TestW17Restart(t *testing.T) {
	w := dynamic(t, 2, quick())
	w.serveKeep()
	a, old := w.nodes[0].Agent, w.nodes[1]
	before, err := rpc.Remote[any](w.ctx, a, name(1), "t.echo", "old")
	must(t, err)
	must(t, before.Confirmed(w.ctx))
	must(t, old.Shutdown(w.ctx))

	again := newNode(1)
	w.nodes = append(w.nodes, again)
	must(t, again.join(w.ctx, w.st, quick())) // the same name, another process
	after, err := rpc.Remote[any](w.ctx, a, name(1), "t.echo", "new")
	must(t, err)
	v, err := after.Fetch(w.ctx)
	if err != nil || v != "new" {
		t.Errorf("got %v, %v", v, err)
	}
	_, err = before.Fetch(w.ctx)
	if !errors.Is(err, rpc.ErrOwnerLost) && !errors.Is(err, rpc.ErrOwnerRestarted) {
		t.Errorf("got %v", err)
	}
	must(t, before.Close()) // must not delete anything of the new one
	time.Sleep(50 * time.Millisecond)
	if v, err = after.Fetch(w.ctx); err != nil || v != "new" {
		t.Errorf("after the old one was closed: %v, %v", v, err)
	}
	must(t, after.Close())
	gone(t, again)
}

// A broken connection is made again: calls go on, and no reference is lost or leaked.
func TestW18ConnectionRemade(t *testing.T) {
	w, f := startFaulty(t, 3)
	w.serveKeep()
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(2), "t.keep", ref)
	must(t, err)
	for range 3 {
		if f.cut() == 0 {
			t.Fatal("there was no connection to cut")
		}
		var last error
		started := time.Now()
		for end := started.Add(3 * soon); ; time.Sleep(2 * time.Millisecond) {
			var v any
			if v, last = ref.Fetch(w.ctx); last == nil && fmt.Sprint(v) == "7" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("no call goes through after %v: the last one: %v", time.Since(started), last)
			}
		}
	}
	f.cut()
	must(t, ref.Close())
	must(t, w.nodes[2].closeKept())
	gone(t, w.nodes[1])
	w.shutdown()
}

// A worker leaves a dynamic world: what it held is released, and who holds its objects is told.
func TestW19DynamicLeave(t *testing.T) {
	w := dynamic(t, 3, quick())
	w.serveKeep()
	leaver := w.nodes[2]
	mine, err := rpc.NewRef[any](w.nodes[0].Agent, 7)
	must(t, err)
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(2), "t.keep", mine)
	must(t, err)
	its, err := rpc.Remote[any](w.ctx, w.nodes[1].Agent, name(2), "t.echo", 8)
	must(t, err)
	must(t, its.Confirmed(w.ctx))
	must(t, mine.Close())
	must(t, leaver.Shutdown(w.ctx))
	gone(t, w.nodes[0])
	within(t, soon, "the fetch", func() {
		_, err = its.Fetch(w.ctx)
		if !errors.Is(err, rpc.ErrOwnerLost) && !errors.Is(err, cohort.PeerLost) {
			t.Errorf("got %v", err)
		}
	})
	must(t, its.Close())
}

// A reference is used and shared while others close it: every use gets the value or a clear error.
func TestW20ConcurrentUseAndClose(t *testing.T) {
	w := start(t, 3)
	w.serveKeep()
	a := w.nodes[0].Agent
	for range 20 {
		ref, err := rpc.Remote[any](w.ctx, a, name(1), "t.echo", 7)
		must(t, err)
		must(t, parallel(8, func(i int) error {
			var err error
			switch i % 4 {
			case 0:
				_, err = ref.Fetch(w.ctx)
			case 1:
				_, err = rpc.Call[any](w.ctx, a, name(2), "t.drop", ref)
			case 2:
				var twin *rpc.Ref[any]
				if twin, err = ref.Clone(); err == nil {
					_, err = twin.Fetch(w.ctx)
					_ = twin.Close()
				}
			default:
				_ = ref.Close()
			}
			if err != nil && !errors.Is(err, rpc.ErrRefClosed) && !errors.Is(err, rpc.ErrGone) {
				return fmt.Errorf("case %d: %w", i%4, err)
			}
			return nil
		}))
	}
	gone(t, w.nodes[1])
	w.shutdown()
}

// ring is an object that keeps a reference to another object.
type ring struct {
	mu   sync.Mutex
	next *rpc.Ref[any]
}

func (r *ring) HeldReferences() []rpc.AnyRef {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		return nil
	}
	return []rpc.AnyRef{r.next}
}

// Objects that refer to each other in a circle are not freed, here as there. A query finds them, and closing one
// reference frees all.
func TestW21Cycles(t *testing.T) {
	w := start(t, 3)
	rings := make([]*ring, 3)
	for i, n := range w.nodes {
		rings[i] = &ring{} // a reference to an own object is confirmed before the function has run
		n.reg.MustHandle("t.ring", func() *ring { return rings[i] }).
			MustHandle("t.link", func(ref *rpc.Ref[any], to *rpc.Ref[any]) error {
				rings[i].mu.Lock()
				defer rings[i].mu.Unlock()
				rings[i].next = to
				return ref.Close()
			})
	}
	var refs []*rpc.Ref[any]
	for i := range 3 {
		ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(i), "t.ring")
		must(t, err)
		must(t, ref.Confirmed(w.ctx))
		refs = append(refs, ref)
	}
	for i, ref := range refs {
		_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(i), "t.link", ref, refs[(i+1)%3])
		must(t, err)
	}
	alone, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 1)
	must(t, err)
	look := func() [][]string {
		var all []rpc.ReferenceInfo
		for _, n := range w.nodes {
			all = append(all, n.References())
		}
		return rpc.Cycles(all...)
	}
	if found := look(); len(found) != 0 {
		t.Errorf("a circle that is held from outside was reported: %v", found)
	}
	ids := []string{}
	for _, ref := range refs {
		ids = append(ids, ref.ID())
		must(t, ref.Close())
	}
	slices.Sort(ids)
	testkit.Until(t, "the circle is found", func() bool {
		found := look()
		return len(found) == 1 && slices.Equal(found[0], ids)
	})
	must(t, rings[0].next.Close())
	for i := range 3 { // dropping one object lets its references go, and so on around
		testkit.Until(t, "the circle goes", func() bool {
			rings[i].mu.Lock()
			if i > 0 && rings[i].next != nil {
				_ = rings[i].next.Close()
			}
			rings[i].mu.Unlock()
			return len(look()) == 0
		})
	}
	must(t, alone.Close())
	w.shutdown()
}

// Close releases at once; the garbage collector is the safety net only, and what it had to release is counted.
func TestW22Close(t *testing.T) {
	w := start(t, 2)
	a := w.nodes[0].Agent
	for range 100 {
		ref, err := rpc.Remote[int](w.ctx, a, name(1), "t.echo", 7)
		must(t, err)
		must(t, ref.Close())
		must(t, ref.Close()) // again: nothing
	}
	gone(t, w.nodes[1])
	if got := info(w.nodes[0], "collected_rrefs"); got != 0 {
		t.Errorf("%d references were left to the collector", got)
	}
	func() {
		ref, err := rpc.Remote[int](w.ctx, a, name(1), "t.echo", 7)
		must(t, err)
		must(t, ref.Confirmed(w.ctx))
	}()
	testkit.Until(t, "the collector finds it", func() bool {
		runtime.GC()
		return info(w.nodes[0], "collected_rrefs") == 1
	})
	gone(t, w.nodes[1])
	w.shutdown()
}
