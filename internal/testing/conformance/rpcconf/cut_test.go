// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

// Connections between live workers are cut, with requests or answers lost on them: no reference may be lost by that, and
// nothing may run twice.

// serveMade registers a function that counts how often it ran, with or without a reference among its arguments.
func (w *world) serveMade(ran *atomic.Int64) {
	for _, n := range w.nodes {
		n.reg.MustHandle("t.made", func(v int) int { ran.Add(1); return v }).
			MustHandle("t.made_of", func(ctx context.Context, ref *rpc.Ref[int]) (int, error) {
				defer func() { _ = ref.Close() }()
				ran.Add(1)
				return ref.Fetch(ctx)
			})
	}
}

// lossy says what is lost on the connection before it is cut.
var lossy = []struct {
	name  string
	types []rpcwire.Type
	from  int
}{
	{"call", []rpcwire.Type{rpcwire.PythonRemoteCall}, 0},
	{"answer", []rpcwire.Type{rpcwire.RemoteRet}, 1},
	{"answer and word", []rpcwire.Type{rpcwire.RemoteRet, frameControl}, 1},
	{"nothing", nil, 0},
}

func TestCutCreation(t *testing.T) {
	for _, loss := range lossy {
		for _, of := range []string{"value", "reference"} {
			t.Run(loss.name+" of a "+of, func(t *testing.T) {
				w, f := startFaulty(t, 3)
				var ran atomic.Int64
				w.serveMade(&ran)
				a := w.nodes[0].Agent
				part, err := rpc.Remote[int](w.ctx, a, name(2), "t.echo", 7)
				must(t, err)
				must(t, part.Confirmed(w.ctx))

				f.between(func(from, to string) bool { return from == name(loss.from) && to == name(1-loss.from) })
				f.loseNext(1<<20, loss.types...)
				var ref *rpc.Ref[int]
				if of == "value" {
					ref, err = rpc.Remote[int](w.ctx, a, name(1), "t.made", 7)
				} else {
					ref, err = rpc.Remote[int](w.ctx, a, name(1), "t.made_of", part)
				}
				must(t, err)
				must(t, part.Close()) // what was sent is the callee's
				time.Sleep(20 * time.Millisecond)
				f.loseNext(0, loss.types...)
				f.cut()
				within(t, 3*soon, "the fetch", func() {
					v, err := ref.Fetch(w.ctx)
					if err != nil || v != 7 {
						t.Errorf("got %v, %v", v, err)
					}
				})
				must(t, ref.Confirmed(w.ctx))
				if n := ran.Load(); n != 1 {
					t.Errorf("the function ran %d times", n)
				}
				must(t, ref.Close())
				for _, n := range w.nodes[1:] {
					gone(t, n)
				}
				w.shutdown()
			})
		}
	}
}

// The creating call comes twice: on the old link, late, and on the new one.
func TestCutCreationTwice(t *testing.T) {
	for _, fn := range []string{"t.made", "t.made_of"} {
		t.Run(fn, func(t *testing.T) {
			w, f := startFaulty(t, 2)
			var ran atomic.Int64
			w.serveMade(&ran)
			a := w.nodes[0].Agent
			f.repeatAll(time.Millisecond, rpcwire.PythonRemoteCall)
			for range 20 {
				ran.Store(0)
				part, err := rpc.NewRef(a, 7)
				must(t, err)
				var arg any = 7
				if fn == "t.made_of" {
					arg = part
				}
				ref, err := rpc.Remote[int](w.ctx, a, name(1), fn, arg)
				must(t, err)
				if v, err := ref.Fetch(w.ctx); err != nil || v != 7 {
					t.Fatalf("got %v, %v", v, err)
				}
				time.Sleep(2 * time.Millisecond)
				if n := ran.Load(); n != 1 {
					t.Fatalf("the function ran %d times", n)
				}
				must(t, part.Close())
				must(t, ref.Close())
			}
			for _, n := range w.nodes {
				gone(t, n)
			}
			w.shutdown()
		})
	}
}

// A fetch changes nothing, so it survives a cut without the caller's help; so do those that wait for a slow function.
func TestCutFetch(t *testing.T) {
	w, f := startFaulty(t, 2)
	a := w.nodes[0].Agent
	release := make(chan struct{})
	w.nodes[1].reg.MustHandle("t.wait", func() int { <-release; return 8 })
	ref, err := rpc.Remote[int](w.ctx, a, name(1), "t.echo", 7)
	must(t, err)
	slow, err := rpc.Remote[int](w.ctx, a, name(1), "t.wait")
	must(t, err)
	must(t, slow.Confirmed(w.ctx))
	f.loseNext(1, rpcwire.PythonRRefFetchRet)
	var fetches sync.WaitGroup
	fetches.Go(func() {
		if v, err := ref.Fetch(w.ctx); err != nil || v != 7 {
			t.Errorf("got %v, %v", v, err)
		}
	})
	fetches.Go(func() {
		if v, err := slow.Fetch(w.ctx); err != nil || v != 8 {
			t.Errorf("got %v, %v", v, err)
		}
	})
	testkit.Until(t, "the answer is lost", func() bool { _, lost := f.count(rpcwire.PythonRRefFetchRet); return lost == 1 })
	testkit.Until(t, "both fetches are under way", func() bool { seen, _ := f.count(rpcwire.PythonRRefFetchCall); return seen >= 2 })
	f.cut()
	testkit.Until(t, "both fetches are under way again", func() bool { seen, _ := f.count(rpcwire.PythonRRefFetchCall); return seen >= 4 })
	close(release)
	fetches.Wait()
	must(t, ref.Close())
	must(t, slow.Close())
	gone(t, w.nodes[1])
	w.shutdown()
}

// A call is not repeated by itself: it fails at once, its caller knows why, and the next one goes through.
func TestCutCall(t *testing.T) {
	w, f := startFaulty(t, 2)
	a := w.nodes[0].Agent
	f.loseNext(1, rpcwire.PythonRet)
	call := rpc.Async[any](w.ctx, a, name(1), "t.nothing")
	testkit.Until(t, "the answer is lost", func() bool { _, lost := f.count(rpcwire.PythonRet); return lost == 1 })
	f.cut()
	within(t, soon, "the failure", func() {
		_, err := call.Await(w.ctx)
		wantErr(t, err, cohort.PeerLost)
	})
	within(t, 3*soon, "the next call", func() {
		_, err := rpc.Call[any](w.ctx, a, name(1), "t.nothing")
		for errors.Is(err, cohort.PeerLost) { // it may meet the end of the link
			_, err = rpc.Call[any](w.ctx, a, name(1), "t.nothing")
		}
		must(t, err)
	})
	w.shutdown()
}

// All connections are cut again and again, at any moment, handshakes included, while references are made, shared, fetched
// and closed by all holders. No reference fails, nothing is left.
func TestCutStorm(t *testing.T) {
	w, f := startFaulty(t, 3)
	w.serveKeep()
	ctx, stop := context.WithCancel(w.ctx)
	defer stop()
	var storm sync.WaitGroup
	storm.Go(func() {
		for range 20 { // however slow the machine is, it ends
			if ctx.Err() != nil {
				return
			}
			f.cut()
			time.Sleep(time.Duration(10+rand.IntN(70)) * time.Millisecond)
		}
	})
	w.every(func(n *node) error {
		for i := range 15 {
			ref, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.echo", i)
			if err != nil {
				return fmt.Errorf("create %d: %w", i, err)
			}
			// The call that shares it may be lost; what it carried must not be.
			_, err = rpc.Call[any](w.ctx, n.Agent, name((n.rank+2)%3), "t.drop", ref)
			if err != nil && !errors.Is(err, cohort.PeerLost) && !errors.Is(err, rpc.ErrWithdrawn) {
				return fmt.Errorf("share %d: %w", i, err)
			}
			var v any
			for tries := 0; ; tries++ { // one fetch survives a few cuts, not any number
				if v, err = ref.Fetch(w.ctx); err == nil || tries == 5 || !errors.Is(err, cohort.PeerLost) {
					break
				}
			}
			if err != nil || fmt.Sprint(v) != strconv.Itoa(i) {
				return fmt.Errorf("fetch %d: %v, %w", i, v, err)
			}
			if err := ref.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	stop()
	storm.Wait()
	for _, n := range w.nodes {
		gone(t, n, w.nodes...)
	}
	w.shutdown()
}

// Connections swallow everything while both workers live: they are given up before a lease ends, and no reference is lost.
func TestCutSilently(t *testing.T) {
	const lease = 12 * time.Second // a machine that others use may lose seconds between the end of the link and that of the lease
	w, f := startFaulty(t, 2, rpc.WithLease(lease/20, lease, lease/20))
	ref, err := rpc.Remote[int](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	must(t, ref.Confirmed(w.ctx))
	f.swallow()
	within(t, 6*soon, "the fetch", func() { // it is sent again when the link has been given up
		if v, err := ref.Fetch(w.ctx); err != nil || v != 7 {
			t.Errorf("got %v, %v", v, err)
		}
	})
	must(t, ref.Close())
	gone(t, w.nodes[1])
	w.shutdown()
}
