// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

type model struct {
	Name  string
	Steps int
}

type other struct{ X int }

// box is an object with methods.
type box struct {
	mu sync.Mutex
	n  int
}

func (b *box) Add(k int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += k
	return b.n
}

func (b *box) Explode() error { return Raise("ValueError", "boom") }

func (b *box) Later(k int) *cohort.Future[int] {
	f := cohort.NewPromise[int]()
	go func() { f.Complete(b.Add(k), nil) }()
	return f.Future()
}

// vault keeps references on behalf of a worker.
type vault struct {
	mu   sync.Mutex
	refs []*Ref[any]
}

func (v *vault) keep(r *Ref[any]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refs = append(v.refs, r)
}

func (v *vault) drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.refs {
		_ = r.Close()
	}
	v.refs = nil
}

func refRegistry() *Registry {
	v := &vault{}
	return NewRegistry().
		MustClass("objects.Box", (*box)(nil)).
		MustHandle("objects.model", func(name string) model { return model{Name: name} }).
		MustHandle("objects.box", func() *box { return &box{} }).
		MustHandle("objects.int", func(n int) int { return n }).
		MustHandle("objects.fail", func(text string) (int, error) { return 0, errors.New(text) }).
		MustHandle("objects.slow", func(ctx context.Context, ms int) (int, error) {
			select {
			case <-time.After(time.Duration(ms) * time.Millisecond):
				return ms, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}).
		MustHandle("objects.fetch", func(ctx context.Context, r *Ref[any]) (any, error) {
			defer func() { _ = r.Close() }()
			return r.Fetch(ctx)
		}).
		MustHandle("objects.model_name", func(ctx context.Context, r *Ref[model]) (string, error) {
			defer func() { _ = r.Close() }()
			m, err := r.Fetch(ctx)
			return m.Name, err
		}).
		MustHandle("objects.keep", v.keep).
		MustHandle("objects.drop", v.drop).
		MustHandle("objects.give", func(r *Ref[any]) *Ref[any] { return r }).
		MustHandle("objects.confirmed", func(r *Ref[any]) bool { return r.ConfirmedByOwner() })
}

// quiet waits until no references are left anywhere.
func quiet(t *testing.T, agents []*Agent) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		runtime.GC() // handles that handlers dropped
		left := ""
		for _, a := range agents {
			i := a.DebugInfo()
			if i["num_owner_rrefs"]+i["num_forks"]+i["num_pending_users"]+i["num_confirmed_users"]+i["num_pending_children"]+
				i["num_offers"]+i["num_pending_futures"] > 0 {
				left = a.Name()
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			for _, a := range agents {
				t.Logf("%s: %v %+v", a.Name(), a.DebugInfo(), a.References())
			}
			t.Fatalf("%s still has references", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestReferences(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 3, true, func(int) *Registry { return refRegistry() }, opts...)
		a, ctx := agents[0], testContext(t)
		for _, to := range []string{"w1", "w0"} {
			ref, err := Remote[model](ctx, a, to, "objects.model", "m")
			if err != nil {
				t.Fatal(err)
			}
			if m, err := ref.Fetch(ctx); err != nil || m.Name != "m" {
				t.Fatalf("fetch from %s: %+v, %v", to, m, err)
			}
			if err := ref.Confirmed(ctx); err != nil || !ref.ConfirmedByOwner() || ref.IsOwner() != (to == "w0") || ref.Owner().Name != to {
				t.Fatalf("state: %v", err)
			}
			for _, at := range []string{"w0", "w1", "w2"} { // to self, to the owner, to a third worker
				if name, err := Call[string](ctx, a, at, "objects.model_name", ref); err != nil || name != "m" {
					t.Fatalf("use of %s's object at %s: %q, %v", to, at, name, err)
				}
				if _, err := Call[any](ctx, a, at, "objects.keep", ref); err != nil {
					t.Fatal(err)
				}
				if ok, err := Call[bool](ctx, a, at, "objects.confirmed", ref); err != nil || !ok {
					t.Fatalf("confirmed at %s: %v, %v", at, ok, err)
				}
				back, err := Call[*Ref[model]](ctx, a, at, "objects.give", ref)
				if err != nil {
					t.Fatal(err)
				}
				if m, err := back.Fetch(ctx); err != nil || m.Name != "m" {
					t.Fatalf("back from %s: %v, %v", at, m, err)
				}
				_ = back.Close()
			}
			_ = ref.Close()
			_ = ref.Close()
			if _, err := ref.Fetch(ctx); !errors.Is(err, ErrRefClosed) || !errors.Is(err, cohort.Closed) {
				t.Fatalf("fetch after close: %v", err)
			}
			if _, err := Call[any](ctx, a, "w1", "objects.keep", ref); !errors.Is(err, ErrRefClosed) {
				t.Fatalf("share after close: %v", err)
			}
		}
		for _, at := range []string{"w0", "w1", "w2"} {
			if _, err := Call[any](ctx, a, at, "objects.drop"); err != nil {
				t.Fatal(err)
			}
		}
		own, err := NewRef(a, model{Name: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := own.LocalValue(ctx); err != nil || m.Name != "mine" {
			t.Fatalf("local value: %v, %v", m, err)
		}
		if name, err := Call[string](ctx, a, "w1", "objects.model_name", own); err != nil || name != "mine" {
			t.Fatalf("own object: %v, %v", name, err)
		}
		_ = own.Close()
		quiet(t, agents)
		shutdown(t, agents)
	})
}

func TestReferenceErrors(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 2, true, func(int) *Registry { return refRegistry() }, opts...)
		a, ctx := agents[0], testContext(t)
		ref, err := Remote[int](ctx, a, "w1", "objects.fail", "badly made")
		if err != nil {
			t.Fatal(err)
		}
		var remote *RemoteError
		if _, failed := ref.Fetch(ctx); !errors.As(failed, &remote) || remote.Message != "badly made" || remote.Worker != "w1" {
			t.Fatalf("fetch: %v", failed)
		}
		missing, err := Remote[int](ctx, a, "w1", "objects.nothing")
		if err != nil {
			t.Fatal(err)
		}
		if _, failed := missing.Fetch(ctx); !errors.Is(failed, cohort.NotFound) {
			t.Fatalf("fetch of what an unknown function makes: %v", failed)
		}
		m, err := Remote[model](ctx, a, "w1", "objects.model", "m")
		if err != nil {
			t.Fatal(err)
		}
		wrong, err := Remote[other](ctx, a, "w1", "objects.int", 3)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wrong.Fetch(ctx); !errors.Is(err, cohort.Mismatch) {
			t.Fatalf("fetch as another type: %v", err)
		}
		if len(opts) == 0 { // the Go type travels on the cohort transport
			if _, err := Call[string](ctx, a, "w1", "objects.model_name", wrong); !errors.Is(err, cohort.Mismatch) {
				t.Fatalf("another type as argument: %v", err)
			}
			if _, err := Call[*Ref[other]](ctx, a, "w1", "objects.give", m); !errors.Is(err, cohort.Mismatch) {
				t.Fatalf("another type as result: %v", err)
			}
		}
		if _, err := m.LocalValue(ctx); !errors.Is(err, cohort.InvalidArgument) {
			t.Fatalf("local value elsewhere: %v", err)
		}
		for _, c := range []interface{ Close() error }{ref, missing, m, wrong} {
			_ = c.Close()
		}
		quiet(t, agents)
		shutdown(t, agents)
	})
}

func TestMethods(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 3, true, func(int) *Registry { return refRegistry() }, opts...)
		a, ctx := agents[0], testContext(t)
		ref, err := Remote[*box](ctx, a, "w1", "objects.box")
		if err != nil {
			t.Fatal(err)
		}
		for i, method := range []string{"add", "Add", "later"} {
			if n, failed := CallMethod[int](ctx, ref, method, 1); failed != nil || n != i+1 {
				t.Fatalf("%s: %v, %v", method, n, failed)
			}
		}
		if n, failed := AsyncMethod[int](ctx, ref, "add", 1).Await(ctx); failed != nil || n != 4 {
			t.Fatalf("async: %v, %v", n, failed)
		}
		sum, err := RemoteMethod[int](ctx, ref, "add", 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := sum.Fetch(ctx); err != nil || n != 5 {
			t.Fatalf("remote: %v, %v", n, err)
		}
		var remote *RemoteError
		if _, err := CallMethod[any](ctx, ref, "explode"); !errors.As(err, &remote) || remote.Kind != "ValueError" {
			t.Fatalf("explode: %v", err)
		}
		if _, err := CallMethod[any](ctx, ref, "missing"); !errors.Is(err, cohort.NotFound) {
			t.Fatalf("missing: %v", err)
		}
		_ = ref.Close()
		_ = sum.Close()
		quiet(t, agents)
		shutdown(t, agents)
	})
}

// TestCollectedReference forgets references; the garbage collector closes them.
func TestCollectedReference(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry { return refRegistry() })
	ctx := testContext(t)
	for range 10 {
		ref, err := Remote[int](ctx, agents[0], "w1", "objects.int", 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ref.Fetch(ctx); err != nil {
			t.Fatal(err)
		}
	}
	quiet(t, agents)
	if n := agents[0].DebugInfo()["num_collected_rrefs"]; n != 10 {
		t.Errorf("%d references were collected, want 10", n)
	}
	shutdown(t, agents)
}

// TestOwnerDies loses the owner of references.
func TestOwnerDies(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 3, true, func(int) *Registry { return refRegistry() }, opts...)
		a, ctx := agents[0], testContext(t)
		ref, err := Remote[int](ctx, a, "w1", "objects.int", 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, failed := ref.Fetch(ctx); failed != nil {
			t.Fatal(failed)
		}
		slow, err := Remote[int](ctx, a, "w1", "objects.slow", 60000)
		if err != nil {
			t.Fatal(err)
		}
		fetched := make(chan error, 1)
		go func() {
			_, err := slow.Fetch(ctx)
			fetched <- err
		}()
		call := Async[int](ctx, a, "w1", "objects.slow", 60000)
		testkit.Until(t, "all of them are under way", func() bool {
			user, owner := a.DebugInfo(), agents[1].DebugInfo()
			// Of the creation its caller may still wait to hear.
			return owner["agent.server_active_calls"] == 2 && user["agent.client_active_calls"]-user["num_pending_users"] == 2
		})
		_ = agents[1].Close()
		died := time.Now()
		if err := <-fetched; !errors.Is(err, cohort.PeerLost) {
			t.Fatalf("fetch under way: %v", err)
		}
		if _, err := call.Await(ctx); !errors.Is(err, cohort.PeerLost) {
			t.Fatalf("call under way: %v", err)
		}
		if took := time.Since(died); took > 5*time.Second {
			t.Errorf("noticed after %v", took)
		}
		if err := eventualError(func() error { _, err := ref.Fetch(ctx); return err }, ErrOwnerLost); err != nil {
			t.Fatalf("later fetch: %v", err)
		}
		_, shared := Call[any](ctx, a, "w2", "objects.keep", ref)
		if about, ok := errors.AsType[*cohort.Error](shared); !ok || !errors.Is(shared, ErrOwnerLost) || about.Peer != "w1" {
			t.Fatalf("share: %v", shared)
		}
		_ = ref.Close()
		_ = slow.Close()
	})
}

func eventualError(fn func() error, want error) (err error) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = fn(); errors.Is(err, want) {
			return nil
		}
	}
	return err
}

// TestUserDies loses a user: what it held is released after the grace, since connections to its address are refused. The
// lease is long, so that a busy machine cannot end it: what its end does is for the simulations of rrefcore.
func TestUserDies(t *testing.T) {
	agents := world(t, 3, true, func(int) *Registry { return refRegistry() },
		WithLease(50*time.Millisecond, 40*time.Second, 200*time.Millisecond))
	a, ctx := agents[0], testContext(t)
	own, err := NewRef(a, model{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Call[any](ctx, a, "w2", "objects.keep", own); err != nil {
		t.Fatal(err)
	}
	if n := a.DebugInfo()["num_forks"]; n != 1 {
		t.Fatalf("%d forks, want 1", n)
	}
	_ = agents[2].Close()
	for deadline := time.Now().Add(20 * time.Second); a.DebugInfo()["num_forks"] > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the fork of a dead worker is still there: %+v", a.References())
		}
	}
	if _, err := own.LocalValue(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestShutdownDeletes ends a world while references are held everywhere.
func TestShutdownDeletes(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 3, true, func(int) *Registry { return refRegistry() }, append(opts, WithLeakCheck())...)
		ctx := testContext(t)
		var held []*Ref[int]
		for _, a := range agents {
			for _, to := range []string{"w0", "w1", "w2"} {
				ref, err := Remote[int](ctx, a, to, "objects.int", 1)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, ref)
				if _, err := Call[any](ctx, a, "w1", "objects.keep", ref); err != nil {
					t.Fatal(err)
				}
			}
		}
		shutdown(t, agents)
		for _, ref := range held {
			if _, err := ref.Fetch(ctx); err == nil && !ref.IsOwner() {
				t.Error("a reference works after shutdown")
			}
			_ = ref.Close()
		}
	})
}

// The creation of a reference fails while others use it and look at it: for the race detector.
func TestUseWhileCreationFails(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.make", func() int { return 1 })
	})
	for range 50 {
		ctx, cancel := context.WithCancel(testContext(t))
		ref, err := Remote[int](ctx, agents[0], "w1", "t.make")
		if err != nil {
			t.Fatal(err)
		}
		own, err := NewRef(agents[0], 1)
		if err != nil {
			t.Fatal(err)
		}
		var work sync.WaitGroup
		work.Go(cancel)
		work.Go(func() { _ = ref.Close() })
		work.Go(func() { _, _ = ref.Clone() })
		work.Go(func() { _, _ = Call[any](testContext(t), agents[0], "w1", "t.unknown", ref) })
		work.Go(func() { agents[0].References() })
		work.Wait()
		cancel()
		_ = own.Close()
	}
}

// A reference that is closed before its owner has confirmed it ends those who wait for that; the collector closes none that
// a caller waits for.
func TestConfirmedEnds(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 2, true, func(int) *Registry { return refRegistry() }, opts...)
		a, ctx := agents[0], testContext(t)
		for range 100 {
			ref, err := Remote[int](ctx, a, "w1", "objects.int", 7)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- ref.Confirmed(ctx) }()
			runtime.Gosched()
			_ = ref.Close()
			if err := <-ended; err != nil && !errors.Is(err, cohort.Closed) {
				t.Fatalf("closed while it is waited for: %v", err)
			}
		}
		confirm := func() error {
			ref, err := Remote[int](ctx, a, "w1", "objects.int", 7)
			if err != nil {
				return err
			}
			return ref.Confirmed(ctx)
		}
		for range 100 {
			ended := make(chan error, 1)
			go func() { ended <- confirm() }()
			for len(ended) == 0 {
				runtime.GC()
			}
			if err := <-ended; err != nil {
				t.Fatalf("only the collector could close it: %v", err)
			}
		}
		quiet(t, agents)
	})
}
