// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// TestResultWithoutFormKeepsNothing returns a reference beside a value that no wire carries. The caller gets an error, and
// the fork that was made for it goes.
func TestResultWithoutFormKeepsNothing(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		var given atomic.Pointer[Ref[int]]
		reg := NewRegistry().MustHandle("v.both", func() []any { return []any{given.Load(), make(chan int)} })
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		held, err := NewRef(agents[1], 7)
		if err != nil {
			t.Fatal(err)
		}
		given.Store(held)
		if got, callErr := Call[any](ctx, agents[0], "w1", "v.both"); callErr == nil {
			t.Fatalf("a channel arrived: %v", got)
		}
		made, err := Remote[any](ctx, agents[0], "w1", "v.both")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := made.Fetch(ctx); err == nil {
			t.Fatalf("a channel was fetched: %v", got)
		}
		_, _ = made.Close(), held.Close()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			info := agents[1].DebugInfo()
			if info["num_owner_rrefs"] == 0 && info["num_forks"] == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("owner %v", info)
			}
		}
		shutdown(t, agents)
	})
}

// TestExceptionWithoutText: an exception comes back from a Go worker on either transport as it was raised.
func TestExceptionWithoutText(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("v.fail", func(text string) error { return Raise("ValueError", "%s", text) })
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		for _, said := range []string{"", `a\nb`, "two\nlines", "ü"} {
			_, err := Call[any](testContext(t), agents[0], "w1", "v.fail", said)
			remote, ok := errors.AsType[*RemoteError](err)
			if !ok || remote.Kind != "ValueError" || remote.Message != said {
				t.Errorf("%q became %#v", said, err)
			}
		}
		shutdown(t, agents)
	})
}

// adder has a method of each form that is called in its own way.
type adder struct{ n int64 }

func (a *adder) Any(v any) any { return a.n + v.(int64) } //nolint:errcheck,forcetypeassert // the test's own

func (a *adder) AnyOrError(_ context.Context, v any) (any, error) { return a.Any(v), nil }

func (a *adder) Typed(v int64) int64 { return a.n + v }

func (a *adder) Whole(_ context.Context, r *Request) (any, error) { return a.Any(r.Args[0]), nil }

// A method is called on the object behind the reference, whatever its form.
func TestReceiverOfMethod(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustClass("t.Adder", (*adder)(nil)).MustHandle("t.adder", func(n int64) *adder { return &adder{n} })
	})
	ctx := testContext(t)
	ref, err := Remote[any](ctx, agents[0], "w1", "t.adder", 40)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"Any", "AnyOrError", "Typed", "Whole"} {
		if got, err := CallMethod[int64](ctx, ref, method, 2); err != nil || got != 42 {
			t.Errorf("%s: %d, %v", method, got, err)
		}
	}
	_ = ref.Close()
	shutdown(t, agents)
}

// TestGivenUpCreationIsDeleted gives a creation up that runs at a worker of PyTorch's protocol, which cannot be told. When it
// answers after all, the object is deleted there.
func TestGivenUpCreationIsDeleted(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		begun, gate := make(chan struct{}), make(chan struct{})
		reg := NewRegistry().MustHandle("v.slow", func() int {
			close(begun)
			<-gate
			return 7
		})
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		ctx, cancel := context.WithCancel(testContext(t))
		ref, err := Remote[int](ctx, agents[0], "w1", "v.slow")
		if err != nil {
			t.Fatal(err)
		}
		<-begun
		cancel()
		// A Go worker confirms a creation while its function runs, and that may have come first.
		if err := ref.Confirmed(testContext(t)); err == nil && len(opts) > 0 {
			t.Error("a creation that was given up is confirmed")
		}
		_ = ref.Close()
		close(gate)
		settled := func() bool {
			user, owner := agents[0].DebugInfo(), agents[1].DebugInfo()
			return user["num_failed_users"] == 0 && user["num_pending_users"] == 0 && owner["num_owner_rrefs"] == 0 &&
				owner["num_forks"] == 0
		}
		for deadline := time.Now().Add(30 * time.Second); !settled(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("user %v\nowner %v", agents[0].DebugInfo(), agents[1].DebugInfo())
			}
		}
		shutdown(t, agents)
	})
}

// TestGivenUpHalfSent gives a call up while it is written to a worker that is spoken to as PyTorch's are. It is written to its end, so
// the worker gets the reference in it, and may use it.
func TestGivenUpHalfSent(t *testing.T) {
	ctx, port := testContext(t), testkit.FreePort(t)
	proxy, err := faultnet.ListenTCP("127.0.0.1:" + strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proxy.Close() }()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	got := make(chan *Ref[int], 1)
	reg := NewRegistry().MustHandle("t.take", func(_ *tensor.Tensor, r *Ref[int]) { got <- r })
	join := func(name string, rank cohort.Rank, opts ...Option) *Agent {
		t.Helper()
		a, failed := Join(ctx, st, name, append(opts, WithRank(rank), WithHandlers(reg), WithLogger(testLogger()),
			WithTransports(TransportUV))...)
		if failed != nil {
			t.Fatal(failed)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a := join("w0", 0, WithAddr("127.0.0.1:0"))
	join("w1", 1, WithAddr("127.0.0.1:"+strconv.Itoa(port)), WithAdvertise(proxy.Addr()))
	big, err := tensor.New(tensor.Uint8, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := NewRef(a, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.call(ctx, "w1", handlerNames, nil); err != nil { // so that there is a pipe
		t.Fatal(err)
	}
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		proxy.SetUp(faultnet.Fault{BytesPerSecond: 1 << 20})
		limited, cancel := context.WithTimeout(ctx, wait)
		_, err := Call[any](limited, a, "w1", "t.take", big, mine)
		cancel()
		proxy.SetUp(faultnet.Fault{})
		if !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatalf("the call that takes too long: %v", err)
		}
		if !errors.Is(err, tensorpipe.ErrUnsent) {
			break
		}
	}
	_ = mine.Close()
	select {
	case r := <-got:
		if v, err := r.Fetch(ctx); err != nil || v != 7 {
			t.Errorf("the reference that came with a call that was given up: %v, %v", v, err)
		}
		_ = r.Close()
	case <-ctx.Done():
		t.Fatal("the call does not arrive")
	}
}
