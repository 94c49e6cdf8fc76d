// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

// The injector does what it is told: nothing, lose the first frames of a type, hold them up.
func TestFaultyOptions(t *testing.T) {
	w, f := startFaulty(t, 2)
	a := w.nodes[0].Agent
	call := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(w.ctx, limit)
		defer cancel()
		_, err := rpc.Call[any](ctx, a, name(1), "t.nothing")
		return err
	}
	before, _ := f.count(rpcwire.PythonCall)
	must(t, call(soon))
	if seen, lost := f.count(rpcwire.PythonCall); seen != before+1 || lost != 0 {
		t.Errorf("%d frames seen, %d lost", seen-before, lost)
	}
	f.loseNext(2, rpcwire.PythonCall)
	for range 2 {
		wantErr(t, call(50*time.Millisecond), cohort.DeadlineExceeded)
	}
	must(t, call(soon))
	if _, lost := f.count(rpcwire.PythonCall); lost != 2 {
		t.Errorf("%d frames lost", lost)
	}
	release := f.hold(rpcwire.PythonCall)
	wantErr(t, call(20*time.Millisecond), cohort.DeadlineExceeded)
	f.delayAll(100*time.Millisecond, rpcwire.PythonCall)
	release()
	started := time.Now()
	must(t, call(soon))
	if took := time.Since(started); took < 90*time.Millisecond {
		t.Errorf("a delayed call took %v", took)
	}
}

// Control messages between a user and the owner are lost again and again, and then all connections are cut; the references
// still come to their end.
func TestFaultyControlMessages(t *testing.T) {
	w, f := startFaulty(t, worldSize)
	// The object of worker n lives at n+1, and n+2 gets a reference: its request and its delete go back by one.
	f.between(func(from, to string) bool {
		for rank := range worldSize {
			if from == name(rank) {
				return to == name((rank+worldSize-1)%worldSize)
			}
		}
		return false
	})
	w.serveRefs()
	p := payload{make: func() any { return ones(2) }}
	for round := range 2 {
		f.loseNext(3, frameControl)
		w.every(func(n *node) error {
			ref, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.add", p.make(), p.make())
			if err != nil {
				return err
			}
			sum, err := rpc.Call[any](w.ctx, n.Agent, name((n.rank+2)%worldSize), "t.add_ref", ref, p.make())
			if err != nil {
				return err
			}
			_ = ref.Close()
			return p.check(sum, 3)
		})
		if _, lost := f.count(frameControl); lost < 3 {
			t.Errorf("only %d control frames were lost", lost)
		}
		if round == 0 {
			f.cut()
			w.reconnect()
		}
	}
	for _, n := range w.nodes {
		testkit.Until(t, "all objects go", func() bool { return info(n, "owner_rrefs") == 0 && info(n, "forks") == 0 })
	}
	w.shutdown()
}

// reconnect returns when every worker can call every other one, after connections were cut: a call on a link whose end has
// not been noticed fails.
func (w *world) reconnect() {
	w.Helper()
	for _, n := range w.nodes {
		for _, to := range w.nodes {
			if n == to {
				continue
			}
			testkit.Until(w.T, "a link is made again", func() bool {
				_, err := rpc.Call[any](w.ctx, n.Agent, to.Name(), "t.nothing")
				return err == nil
			})
		}
	}
}

// creations are the ways to make an object elsewhere.
var creations = []struct {
	name, fn string
	kind     rpcwire.Type
}{
	{"handler", "t.add", rpcwire.PythonRemoteCall},
	{"builtin", addSchema, rpcwire.ScriptRemoteCall},
	{"script", "__torch__.t.add", rpcwire.ScriptRemoteCall},
}

// The creating call is lost: the handle says so when it is shared, alone or among other arguments.
func TestFaultyCreationLostShare(t *testing.T) {
	t.Run("peer", func(t *testing.T) {
		w, f := startFaulty(t, 3)
		f.loseNext(1, rpcwire.PythonRemoteCall)
		ref, err := rpc.Remote[any](within50ms(w.ctx, t), w.nodes[0].Agent, name(1), "t.add", ones(2), ones(2))
		must(t, err)
		wantErr(t, ref.Confirmed(w.ctx), rpc.ErrCreateTimeout)
		for _, args := range [][]any{{ref}, {[]any{1, ref}}} {
			for _, fn := range []string{"t.echo", "__torch__.t.echo"} {
				_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(2), fn, args...)
				wantErr(t, err, rpc.ErrCreateTimeout)
			}
		}
		must(t, ref.Close())
		testkit.Until(t, "nothing is left", func() bool { return info(w.nodes[1], "owner_rrefs") == 0 })
		w.shutdown()
	})
}

func TestFaultyCreationLost(t *testing.T) {
	for _, c := range creations {
		t.Run(c.name, func(t *testing.T) {
			t.Run("peer", func(t *testing.T) {
				w, f := startFaulty(t, 2)
				f.loseNext(1, c.kind)
				ref, err := rpc.Remote[any](within50ms(w.ctx, t), w.nodes[0].Agent, name(1), c.fn, addArgs(c.fn, ones(2), ones(2))...)
				must(t, err)
				within(t, soon, "the fetch", func() {
					_, err = ref.Fetch(w.ctx)
					if !errors.Is(err, cohort.DeadlineExceeded) && !errors.Is(err, rpc.ErrCreateTimeout) &&
						!errors.Is(err, rpc.ErrCanceled) {
						t.Errorf("got %v", err)
					}
				})
				must(t, ref.Close())
				testkit.Until(t, "nothing is left", func() bool { return info(w.nodes[1], "owner_rrefs") == 0 })
				w.shutdown()
			})
		})
	}
}

// The creating call is late. PyTorch's test must wait until the owner has two objects and forks, because the delete could
// overtake the creation; here nothing is left whatever comes first.
func TestFaultyCreationLate(t *testing.T) {
	for _, c := range creations {
		t.Run(c.name, func(t *testing.T) {
			t.Run("peer", func(t *testing.T) {
				w, f := startFaulty(t, 2)
				release := f.hold(c.kind)
				a := w.nodes[0].Agent
				ref, err := rpc.Remote[any](within50ms(w.ctx, t), a, name(1), c.fn, addArgs(c.fn, ones(2), ones(2))...)
				must(t, err)
				_, err = ref.Fetch(within50ms(w.ctx, t)) // blocked already when the creation fails
				if !errors.Is(err, cohort.DeadlineExceeded) && !errors.Is(err, rpc.ErrCreateTimeout) && !errors.Is(err, rpc.ErrCanceled) {
					t.Errorf("got %v", err)
				}
				wantErr(t, ref.Confirmed(w.ctx), rpc.ErrCreateTimeout)
				_, err = ref.Fetch(w.ctx)
				wantErr(t, err, rpc.ErrCreateTimeout)

				release()

				// With enough time the creation succeeds.
				release = f.hold(c.kind)
				slow, err := rpc.Remote[any](w.ctx, a, name(1), c.fn, addArgs(c.fn, ones(2), ones(2))...)
				must(t, err)
				_, err = slow.Fetch(within50ms(w.ctx, t))
				wantErr(t, err, cohort.DeadlineExceeded)
				release()
				sum, err := slow.Fetch(w.ctx)
				must(t, err)
				must(t, payload{make: func() any { return ones(2) }}.check(sum, 2))
				must(t, slow.Close())
				must(t, ref.Close())
				testkit.Until(t, "nothing is left", func() bool { return info(w.nodes[1], "owner_rrefs") == 0 })
				w.shutdown()
			})
		})
	}
}

func TestFaultyFetchTimeout(t *testing.T) {
	w, f := startFaulty(t, 2)
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2), ones(2))
	must(t, err)
	release := f.hold(rpcwire.PythonRRefFetchCall)
	_, err = ref.Fetch(within50ms(w.ctx, t))
	wantErr(t, err, cohort.DeadlineExceeded)
	release()
	sum, err := ref.Fetch(w.ctx)
	must(t, err)
	must(t, payload{make: func() any { return ones(2) }}.check(sum, 2))
	must(t, ref.Close())
	w.shutdown()
}

func TestFaultyCallTimeout(t *testing.T) {
	for _, c := range creations[1:] {
		t.Run(c.name, func(t *testing.T) {
			w, f := startFaulty(t, 2)
			f.delayAll(500*time.Millisecond, rpcwire.ScriptCall)
			a, args := w.nodes[0].Agent, addArgs(c.fn, ones(2), ones(2))
			ctx := context.Background()
			_, err := rpc.Call[any](within50ms(ctx, t), a, name(1), c.fn, args...)
			wantErr(t, err, cohort.DeadlineExceeded)
			_, err = rpc.Async[any](within50ms(ctx, t), a, name(1), c.fn, args...).Await(w.ctx)
			wantErr(t, err, cohort.DeadlineExceeded)
			a.SetTimeout(50 * time.Millisecond)
			_, err = rpc.Call[any](ctx, a, name(1), c.fn, args...)
			wantErr(t, err, cohort.DeadlineExceeded)
			if _, err := rpc.Call[any](w.ctx, a, name(1), c.fn, args...); err != nil { // its own limit wins
				t.Error(err)
			}
			a.SetTimeout(0)
			if _, err := rpc.Call[any](ctx, a, name(1), c.fn, args...); err != nil {
				t.Error(err)
			}
			a.SetTimeout(limit)
			w.shutdown()
		})
	}
}
