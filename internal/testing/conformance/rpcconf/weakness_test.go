// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

// The tests W01 to W22 show what happens here where PyTorch's references leak, split, hang or lie. The numbers are those
// of the list in docs/references.md.

// quick makes dead workers be found soon.
func quick() rpc.Option {
	return rpc.WithLease(50*time.Millisecond, 350*time.Millisecond, 100*time.Millisecond)
}

// gone waits until a worker owns nothing for others.
func gone(t *testing.T, n *node, all ...*node) {
	t.Helper()
	defer func() {
		if t.Failed() {
			for _, n := range append(all, n) {
				t.Logf("left at worker %d: %+v", n.rank, n.References())
			}
		}
	}()
	testkit.Until(t, fmt.Sprintf("worker %d owns nothing", n.rank), func() bool {
		return info(n, "owner_rrefs") == 0 && info(n, "forks") == 0
	})
}

// serveKeep registers a handler that keeps the reference it gets.
func (w *world) serveKeep() {
	for _, n := range w.nodes {
		n.reg.MustHandle("t.keep", func(ref *rpc.Ref[any]) { n.keep(ref) }).
			MustHandle("t.drop", func(ref *rpc.Ref[any]) (bool, error) { return ref.ConfirmedByOwner(), ref.Close() }).
			MustHandle("t.use", func(ctx context.Context, ref *rpc.Ref[any]) (any, error) {
				defer func() { _ = ref.Close() }()
				return ref.LocalValue(ctx)
			})
	}
}

// A user dies: its forks go with it.
func TestW01UserCrash(t *testing.T) {
	w, f := startFaulty(t, 3, quick())
	w.serveKeep()
	owner := w.nodes[0]
	ref, err := rpc.NewRef[any](owner.Agent, 7)
	must(t, err)
	for _, user := range []string{name(1), name(2)} {
		_, err = rpc.Call[any](w.ctx, owner.Agent, user, "t.keep", ref)
		must(t, err)
	}
	made, err := rpc.Remote[any](w.ctx, w.nodes[2].Agent, name(0), "t.echo", 1)
	must(t, err)
	must(t, made.Confirmed(w.ctx))
	testkit.Until(t, "three forks", func() bool { return info(owner, "forks") == 3 })
	must(t, ref.Close())
	// One closes without notice, the other one is cut off first.
	must(t, w.nodes[1].Close())
	f.cut()
	must(t, w.nodes[2].Close())
	gone(t, owner)
}

// A message with a reference is lost, or its receiver dies before it has accepted: the parent is not pinned for ever.
func TestW02ParentUnpinned(t *testing.T) {
	w, f := startFaulty(t, 3, quick())
	w.serveKeep()
	a := w.nodes[0].Agent
	ref, err := rpc.Remote[any](w.ctx, a, name(1), "t.echo", 7)
	must(t, err)
	must(t, ref.Confirmed(w.ctx))
	f.loseNext(1, rpcwire.PythonCall)
	_, err = rpc.Call[any](within50ms(w.ctx, t), a, name(2), "t.keep", ref)
	wantErr(t, err, cohort.DeadlineExceeded)
	testkit.Until(t, "no child pins the parent", func() bool { return info(w.nodes[0], "pending_children") == 0 })

	f.delayAll(10*time.Second, rpcwire.PythonCall) // on its way when the receiver dies
	waiting := rpc.Async[any](w.ctx, a, name(2), "t.keep", ref)
	time.Sleep(20 * time.Millisecond)
	must(t, w.nodes[2].Close())
	_, err = waiting.Await(w.ctx)
	wantErr(t, err, cohort.PeerLost)
	testkit.Until(t, "no child pins the parent", func() bool { return info(w.nodes[0], "pending_children") == 0 })
	must(t, ref.Close())
	gone(t, w.nodes[1])
}

// The owner enters a fork before it sends the reference. When that message fails, the fork is taken back.
func TestW03EarlyRegistrationUndone(t *testing.T) {
	w, f := startFaulty(t, 2)
	w.serveKeep()
	owner := w.nodes[0]
	ref, err := rpc.NewRef[any](owner.Agent, 7)
	must(t, err)
	f.loseNext(1, rpcwire.PythonCall)
	_, err = rpc.Call[any](within50ms(w.ctx, t), owner.Agent, name(1), "t.keep", ref)
	wantErr(t, err, cohort.DeadlineExceeded)
	gone(t, owner)
	// A message that cannot even be built takes its forks back too.
	_, err = rpc.Call[any](w.ctx, owner.Agent, name(1), "t.keep", ref, make(chan int))
	if err == nil {
		t.Error("a channel was sent")
	}
	gone(t, owner)
	must(t, ref.Close())
	w.shutdown()
}

// A creation that fails, for whatever reason, shows it on its handle, and nothing stays pending.
func TestW04CreationErrorsVisible(t *testing.T) {
	w := start(t, 3, quick())
	a := w.nodes[0].Agent
	w.nodes[1].reg.MustHandle("t.bad", func() error { return rpc.Raise("ValueError", "Expected error") })
	must(t, w.nodes[2].Close())
	for _, c := range []struct {
		what, to, fn string
		args         []any
		want         error
	}{
		{"an error of the function", name(1), "t.bad", nil, cohort.Remote},
		{"an unknown function", name(1), "t.nosuch", nil, cohort.NotFound},
		{"wrong arguments", name(1), "t.kwargs", []any{"text", 1, 2}, cohort.InvalidArgument},
		{"a dead worker", name(2), "t.echo", []any{1}, cohort.PeerLost},
		{"the same again", name(2), "t.echo", []any{1}, cohort.PeerLost},
	} {
		within(t, soon, c.what, func() {
			ref, err := rpc.Remote[any](w.ctx, a, c.to, c.fn, c.args...)
			if err == nil {
				_, err = ref.Fetch(w.ctx)
				_ = ref.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%s: got %v, want %v", c.what, err, c.want)
			}
		})
	}
	testkit.Until(t, "nothing is pending", func() bool { return info(w.nodes[0], "pending_users") == 0 })
	gone(t, w.nodes[1])
}

// Each handle reports its own failure: PyTorch's handlers belong to the first reference that ever failed.
func TestW05EveryHandleReports(t *testing.T) {
	w, f := startFaulty(t, 2)
	f.loseNext(3, rpcwire.PythonRemoteCall)
	var refs []*rpc.Ref[any]
	for range 3 {
		ref, err := rpc.Remote[any](within50ms(w.ctx, t), w.nodes[0].Agent, name(1), "t.echo", 1)
		must(t, err)
		refs = append(refs, ref)
	}
	good, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 1)
	must(t, err)
	for i, ref := range refs {
		if err := ref.Confirmed(w.ctx); !errors.Is(err, rpc.ErrCreateTimeout) {
			t.Errorf("handle %d: %v", i, err)
		}
		_, err := ref.Fetch(w.ctx)
		wantErr(t, err, rpc.ErrCreateTimeout)
		must(t, ref.Close())
	}
	if _, err := good.Fetch(w.ctx); err != nil {
		t.Errorf("the one that did not fail: %v", err)
	}
	must(t, good.Close())
	gone(t, w.nodes[1])
	w.shutdown()
}

// The delete of a creation that timed out comes before the call itself: the late call makes nothing that stays.
func TestW06LateCreation(t *testing.T) {
	w, f := startFaulty(t, 2)
	release := f.hold(rpcwire.PythonRemoteCall)
	ref, err := rpc.Remote[any](within50ms(w.ctx, t), w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	wantErr(t, ref.Confirmed(w.ctx), rpc.ErrCreateTimeout)
	must(t, ref.Close())
	gone(t, w.nodes[1])
	release()
	time.Sleep(50 * time.Millisecond) // now the call has arrived
	gone(t, w.nodes[1])
	if objects := w.nodes[1].References().Objects; len(objects) != 0 {
		t.Errorf("left are %+v", objects)
	}
	w.shutdown()
}

// The confirmation does not wait for the function.
func TestW07ConfirmedBeforeTheFunctionEnds(t *testing.T) {
	w := start(t, 2)
	release := make(chan struct{})
	w.nodes[1].reg.MustHandle("t.slow", func() int { <-release; return 42 })
	ref, err := rpc.Remote[int](w.ctx, w.nodes[0].Agent, name(1), "t.slow")
	must(t, err)
	within(t, soon, "the confirmation", func() { must(t, ref.Confirmed(w.ctx)) })
	close(release)
	if v, err := ref.Fetch(w.ctx); err != nil || v != 42 {
		t.Errorf("got %v, %v", v, err)
	}
	must(t, ref.Close())
	w.shutdown()
}

// Control messages arrive twice, also after the delete: no fork comes back to life.
func TestW08NoResurrection(t *testing.T) {
	w, f := startFaulty(t, 3)
	w.serveKeep()
	f.repeatAll(100*time.Millisecond, frameControl)
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	for range 5 {
		_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(2), "t.drop", ref)
		must(t, err)
	}
	must(t, ref.Close())
	gone(t, w.nodes[1])
	time.Sleep(200 * time.Millisecond) // the copies have come
	if forks := info(w.nodes[1], "forks"); forks != 0 {
		t.Errorf("%d forks came back", forks)
	}
	w.shutdown()
}

// The owner dies while a user waits for its confirmation: the user's function is not stuck, its caller hears the reason.
func TestW09ForkRequestFails(t *testing.T) {
	w, f := startFaulty(t, 3, quick())
	w.serveKeep()
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	must(t, ref.Confirmed(w.ctx))
	// What the owner says to the new user does not come through.
	f.between(func(from, to string) bool { return from == name(1) && to == name(2) })
	f.loseNext(1<<20, frameControl)
	waiting := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(2), "t.drop", ref)
	time.Sleep(100 * time.Millisecond)
	if waiting.Completed() {
		t.Log("the function ran without waiting for its owner")
	}
	within(t, soon, "the end", func() {
		must(t, w.nodes[1].Close())
		_, err := waiting.Await(w.ctx)
		if !errors.Is(err, cohort.PeerLost) {
			t.Errorf("got %v", err)
		}
	})
	testkit.Until(t, "nothing is pending", func() bool { return info(w.nodes[2], "pending_users") == 0 })
}

// Accepts and deletes that cannot be sent now are sent when the connection is back.
func TestW10DeletesSurviveAnOutage(t *testing.T) {
	w, f := startFaulty(t, 2)
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	must(t, ref.Confirmed(w.ctx))
	f.loseNext(1<<20, frameControl)
	must(t, ref.Close())
	time.Sleep(100 * time.Millisecond)
	if forks := info(w.nodes[1], "forks"); forks != 1 {
		t.Fatalf("%d forks during the outage", forks)
	}
	f.cut()
	f.loseNext(0, frameControl)
	gone(t, w.nodes[1])
	w.shutdown()
}

// A fetch that comes after the delete is refused at once; PyTorch's waits for ever.
func TestW11FetchOfAGoneObject(t *testing.T) {
	w, f := startFaulty(t, 2)
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	must(t, ref.Confirmed(w.ctx))
	release := f.hold(rpcwire.PythonRRefFetchCall)
	failed := make(chan error, 1)
	go func() {
		_, err := ref.Fetch(w.ctx)
		failed <- err
	}()
	testkit.Until(t, "the fetch is on its way", func() bool { seen, _ := f.count(rpcwire.PythonRRefFetchCall); return seen == 1 })
	must(t, ref.Close())
	gone(t, w.nodes[1])
	release()
	select {
	case err := <-failed:
		if !errors.Is(err, rpc.ErrGone) && !errors.Is(err, rpc.ErrRefClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(soon):
		t.Error("the fetch waits")
	}
	w.shutdown()
}

// PyTorch's split object: a third user comes and goes while the creating function runs, and the owner's own code uses the
// reference meanwhile. There it waits for ever; here placeholder and value are one object.
func TestW12OneObject(t *testing.T) {
	w := start(t, 3)
	w.serveKeep()
	a := w.nodes[0].Agent
	release := make(chan struct{})
	w.nodes[1].reg.MustHandle("t.slow", func() int { <-release; return 42 })
	ref, err := rpc.Remote[any](w.ctx, a, name(1), "t.slow")
	must(t, err)
	used := rpc.Async[int](w.ctx, a, name(1), "t.use", ref)
	ok, err := rpc.Call[bool](w.ctx, a, name(2), "t.drop", ref)
	if err != nil || !ok {
		t.Fatalf("the third user: %v, %v", ok, err)
	}
	close(release)
	within(t, soon, "the owner's own use", func() {
		if v, err := used.Await(w.ctx); err != nil || v != 42 {
			t.Errorf("got %v, %v", v, err)
		}
	})
	if v, err := ref.Fetch(w.ctx); err != nil || fmt.Sprint(v) != "42" {
		t.Errorf("the creator: %v, %v", v, err)
	}
	must(t, ref.Close())
	gone(t, w.nodes[1])
	w.shutdown()
}

// A call that the callee cannot make sense of gives back the references it brought.
func TestW13UnreadableRequest(t *testing.T) {
	w := start(t, 3)
	owner := w.nodes[0]
	local, err := rpc.NewRef[any](owner.Agent, 7)
	must(t, err)
	foreign, err := rpc.Remote[any](w.ctx, owner.Agent, name(2), "t.echo", 8)
	must(t, err)
	for _, fn := range []string{"t.nosuch", "t.sum"} { // unknown; known with other arguments
		for _, mode := range modes {
			if _, err := mode.call(w.ctx, owner.Agent, name(1), fn, local, foreign); err == nil {
				t.Errorf("%s %s: no error", mode.name, fn)
			}
		}
	}
	gone(t, owner)
	must(t, local.Close())
	must(t, foreign.Close())
	gone(t, w.nodes[2])
	testkit.Until(t, "no child pins a parent", func() bool { return info(owner, "pending_children") == 0 })
	w.shutdown()
}

// The references in an answer that comes too late are given back.
func TestW14LateReply(t *testing.T) {
	w := start(t, 2)
	n := w.nodes[1]
	var begun, returned atomic.Int64
	late := make(chan struct{})
	n.reg.MustHandle("t.slow_ref", func() (*rpc.Ref[int], error) {
		begun.Add(1)
		<-late // ignores its context
		defer returned.Add(1)
		return rpc.NewRef(n.self(), 7)
	})
	for short := 50 * time.Millisecond; begun.Load() == 0 && !t.Failed(); short *= 4 { // on a busy machine it does not begin at once
		ctx, cancel := context.WithTimeout(w.ctx, short)
		_, err := rpc.Call[*rpc.Ref[int]](ctx, w.nodes[0].Agent, name(1), "t.slow_ref")
		cancel()
		wantErr(t, err, cohort.DeadlineExceeded)
	}
	close(late)
	testkit.Until(t, "the late answer", func() bool { return begun.Load() == returned.Load() })
	gone(t, n)
	w.shutdown()
}
