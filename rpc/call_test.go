// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// TestNested lets 64 chains of calls run through two workers with very few places: a handler that waits for its own call
// does not hold one.
func TestNested(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("nest.down", func(ctx context.Context, n int) (int, error) {
			if n == 0 {
				return 0, nil
			}
			a := AgentFrom(ctx)
			to := fmt.Sprintf("w%d", 1-a.ID())
			if n%2 == 0 { // both ways to wait
				v, err := Await(ctx, Async[int](ctx, a, to, "nest.down", n-1))
				return v + 1, err
			}
			v, err := Call[int](ctx, a, to, "nest.down", n-1)
			return v + 1, err
		})
		agents := world(t, 2, true, func(int) *Registry { return reg }, append(opts, WithConcurrency(2))...)
		ctx := testContext(t)
		futures := make([]*cohort.Future[int], 64)
		for i := range futures {
			futures[i] = Async[int](ctx, agents[0], "w1", "nest.down", 1+i%8)
		}
		if n, err := Call[int](ctx, agents[0], "w1", "nest.down", 64); err != nil || n != 64 {
			t.Fatalf("deep chain: %d, %v", n, err)
		}
		for i, f := range futures {
			if n, err := f.Await(ctx); err != nil || n != 1+i%8 {
				t.Fatalf("chain %d: %d, %v", i, n, err)
			}
		}
		shutdown(t, agents)
	})
}

// TestConcurrencyIsBounded counts how many handlers run at once.
func TestConcurrencyIsBounded(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	reg := NewRegistry().MustHandle("work.wait", func() {
		n := running.Add(1)
		for {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		<-release
		running.Add(-1)
	})
	agents := world(t, 2, true, func(int) *Registry { return reg }, WithConcurrency(3))
	ctx := testContext(t)
	var futures []*cohort.Future[any]
	for range 20 {
		futures = append(futures, Async[any](ctx, agents[0], "w1", "work.wait"))
	}
	for deadline := time.Now().Add(5 * time.Second); agents[1].DebugInfo()["agent.server_waiting_calls"] < 17 ||
		running.Load() < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v", agents[1].DebugInfo())
		}
	}
	close(release)
	for _, f := range futures {
		if _, err := f.Await(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if most.Load() != 3 {
		t.Errorf("%d handlers ran at once, the bound is 3", most.Load())
	}
	shutdown(t, agents)
}

// TestDeadlineTravels ends the callee's context with the caller's, by deadline and by cancellation.
func TestDeadlineTravels(t *testing.T) {
	ended := make(chan error, 1)
	started := make(chan struct{}, 1)
	reg := NewRegistry().MustHandle("work.hang", func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	})
	agents := world(t, 2, true, func(int) *Registry { return reg })
	for _, to := range []string{"w1", "w0"} {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, err := Call[any](ctx, agents[0], to, "work.hang")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatalf("to %s: %v", to, err)
		}
		<-started
		select {
		case cause := <-ended:
			if cause == nil {
				t.Errorf("the callee at %s ended without cause", to)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("the callee at %s goes on", to)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := Async[any](ctx, agents[0], "w1", "work.hang")
	<-started
	cancel()
	if _, err := f.Await(context.Background()); !errors.Is(err, cohort.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the callee of a cancelled call goes on")
	}
	shutdown(t, agents)
}

func TestErrors(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().
			MustHandle("bad.plain", func() error { return errors.New("just wrong") }).
			MustHandle("bad.typed", func() error { return Raise("mymod.MyError", "mine") }).
			MustHandle("bad.missing", func() error { return cohort.New("disk: open", cohort.NotFound, "no file") }).
			MustHandle("bad.panic", func() { panic("a bug") }).
			MustHandle("bad.value", func() any { return make(chan int) }).
			MustHandle("bad.args", func(a int, b string) string { return b }, Params("a", "b"))
		agents := world(t, 2, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		for _, to := range []string{"w1", "w0"} {
			call := func(fn string, args ...any) error {
				_, err := Call[any](ctx, agents[0], to, fn, args...)
				return err
			}
			var remote *RemoteError
			if err := call("bad.plain"); !errors.As(err, &remote) || remote.Kind != "RuntimeError" ||
				remote.Message != "just wrong" || remote.Worker != to {
				t.Errorf("plain: %#v", err)
			}
			if err := call("bad.typed"); !errors.As(err, &remote) || remote.Kind != "mymod.MyError" || !errors.Is(err, cohort.Remote) {
				t.Errorf("typed: %#v", err)
			}
			if err := call("bad.panic"); !errors.As(err, &remote) || !strings.Contains(remote.Message, "a bug") ||
				strings.Contains(remote.Stack, "call_test.go") {
				t.Errorf("panic: %#v", err)
			}
			if err := call("bad.value"); !errors.As(err, &remote) || !strings.Contains(remote.Message, "chan int") {
				t.Errorf("value: %v", err)
			}
			if err := call("bad.nothing"); !errors.Is(err, cohort.NotFound) {
				t.Errorf("unknown function: %v", err)
			}
			for _, args := range [][]any{{1}, {"x", "y"}, {1, "b", 3}, {1, Kw{"c": 2}}, {1, "b", Kw{"b": "c"}}} {
				if err := call("bad.args", args...); !errors.Is(err, cohort.InvalidArgument) {
					t.Errorf("arguments %v: %v", args, err)
				}
			}
			if len(opts) == 0 { // codes travel on the cohort transport
				if err := call("bad.missing"); !errors.Is(err, cohort.NotFound) {
					t.Errorf("missing: %v", err)
				}
			}
		}
		if _, err := Call[int](ctx, agents[0], "w1", "bad.args", 1, "text"); !errors.Is(err, cohort.Mismatch) {
			t.Errorf("result of another type: %v", err)
		}
		if _, err := Call[int](ctx, agents[0], "unknown", "bad.args"); !errors.Is(err, cohort.NotFound) {
			t.Errorf("unknown worker: %v", err)
		}
		if _, err := Call[any](ctx, agents[0], "w1", "bad.args", make(chan int)); !errors.Is(err, cohort.InvalidArgument) ||
			!strings.Contains(err.Error(), "bad.args") || !strings.Contains(err.Error(), "w1") {
			t.Errorf("argument without form: %v", err)
		}
		shutdown(t, agents)
		if _, err := Call[any](ctx, agents[0], "w1", "bad.plain"); !errors.Is(err, cohort.Closed) {
			t.Errorf("after shutdown: %v", err)
		}
	})
}

// TestValues sends every kind of value around.
func TestValues(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x })
		agents := world(t, 2, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		x := tensor.Must(tensor.From([]float32{1, 2, 3, 4}, 2, 2))
		view, err := x.Transpose(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []any{
			nil, true, int64(7), int64(-1 << 62), 2.5, 1 - 2i, "text\x00ü",
			[]byte{0, 255},
			[]any{},
			[]any{int64(1), "a", nil},
			py.Tuple{int64(1), py.Tuple{}},
			py.Set{int64(1)},
			py.FrozenSet{"x"},
			py.ByteArray{1},
			&py.Dict{Pairs: []py.Pair{{Key: "a", Value: []any{1.5}}, {Key: int64(2), Value: nil}}},
			py.Global{Module: "torch", Name: "float32"},
			&py.Object{
				Class: py.Global{Module: "datetime", Name: "timedelta"}, Args: py.Tuple{int64(1), int64(2)},
				States: []any{}, Items: []any{},
			},
		} {
			got, callErr := Call[any](ctx, agents[0], "w1", "v.echo", v)
			if callErr != nil {
				t.Fatalf("%#v: %v", v, callErr)
			}
			if diff := cmp.Diff(v, got, cmp.Comparer(func(a, b py.Object) bool {
				return a.Class == b.Class && cmp.Equal(a.Args, b.Args)
			})); diff != "" {
				t.Errorf("%#v: %s", v, diff)
			}
		}
		pair, err := Call[[]*tensor.Tensor](ctx, agents[0], "w1", "v.echo", []*tensor.Tensor{x, view})
		if err != nil {
			t.Fatal(err)
		}
		if !tensor.Equal(pair[0], x) || !tensor.Equal(pair[1], view) || pair[0].Storage() != pair[1].Storage() {
			t.Error("a tensor and its view do not come back as such")
		}
		sparse := &tensor.Sparse{
			Shape: []int{2, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 2, 0}, 2, 2)),
			Values: tensor.Must(tensor.From([]float32{3, 4}, 2)),
		}
		back, err := Call[*tensor.Sparse](ctx, agents[0], "w1", "v.echo", sparse)
		if err != nil || !tensor.Equal(back.Indices, sparse.Indices) {
			t.Errorf("sparse: %v", err)
		}
		type inner struct{ A, B int }
		type outer struct {
			Name  string
			Inner inner
			Ptr   *inner
			List  []inner
			Map   map[string]float64
		}
		want := outer{Name: "n", Inner: inner{1, 2}, Ptr: &inner{3, 4}, List: []inner{{5, 6}}, Map: map[string]float64{"k": 1.5}}
		got, err := Call[outer](ctx, agents[0], "w1", "v.echo", want)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("struct: %v %s", err, diff)
		}
		shutdown(t, agents)
	})
}

// TestAsyncHandler answers when its future completes, and holds no place meanwhile.
func TestAsyncHandler(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		waiting := make(chan *cohort.Promise[int], 10)
		reg := NewRegistry().
			MustHandle("later.get", func() *cohort.Future[int] {
				f := cohort.NewPromise[int]()
				waiting <- f
				return f.Future()
			}).
			MustHandle("later.now", func() int { return 1 })
		agents := world(t, 2, true, func(int) *Registry { return reg }, append(opts, WithConcurrency(1))...)
		ctx := testContext(t)
		f := Async[int](ctx, agents[0], "w1", "later.get")
		g := Async[int](ctx, agents[0], "w1", "later.get")
		one, two := <-waiting, <-waiting
		if n, err := Call[int](ctx, agents[0], "w1", "later.now"); err != nil || n != 1 {
			t.Fatalf("now: %v, %v", n, err)
		}
		one.Complete(5, nil)
		two.Complete(0, errors.New("failed later"))
		n1, err1 := f.Await(ctx)
		n2, err2 := g.Await(ctx)
		if (err1 == nil) == (err2 == nil) || n1+n2 != 5 {
			t.Fatalf("%v %v, %v %v", n1, err1, n2, err2)
		}
		shutdown(t, agents)
	})
}

// TestStatsAndEvents checks what a hook and the statistics report.
func TestStatsAndEvents(t *testing.T) {
	var mu sync.Mutex
	kinds := map[observe.Kind]int{}
	hook := observe.Hook(func(e observe.Event) {
		mu.Lock()
		defer mu.Unlock()
		kinds[e.Kind]++
	})
	reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x })
	agents := world(t, 2, true, func(int) *Registry { return reg }, WithHook(hook))
	ctx := testContext(t)
	before := agents[0].Stats()["w1"]
	for range 5 {
		if _, err := Call[any](ctx, agents[0], "w1", "v.echo", 1); err != nil {
			t.Fatal(err)
		}
	}
	if s := agents[0].Stats()["w1"]; s.Calls-before.Calls != 5 || s.BytesSent <= before.BytesSent ||
		s.BytesReceived <= before.BytesReceived {
		t.Errorf("stats: %+v, before %+v", s, before)
	}
	if s := agents[1].Stats()["w0"]; s.Served < 5 {
		t.Errorf("stats of the callee: %+v", s)
	}
	shutdown(t, agents)
	mu.Lock()
	defer mu.Unlock()
	if kinds["rpc.call"] < 10 || kinds["rpc.serve"] < 5 || kinds["rpc.shutdown"] == 0 {
		t.Errorf("events: %v", kinds)
	}
}

// TestJoinErrors checks what Join refuses.
func TestJoinErrors(t *testing.T) {
	ctx := testContext(t)
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	for name, c := range map[string]struct {
		worker string
		opts   []Option
		code   cohort.Code
	}{
		"no rank":    {"a", []Option{WithWorldSize(2)}, cohort.InvalidArgument},
		"bad rank":   {"a", []Option{WithRank(-1)}, cohort.InvalidArgument},
		"rank range": {"a", []Option{WithRank(3), WithWorldSize(2)}, cohort.InvalidArgument},
		"empty name": {"", nil, cohort.InvalidArgument},
		"bad name":   {"a b", nil, cohort.InvalidArgument},
		"long name":  {strings.Repeat("a", 128), nil, cohort.InvalidArgument},
		"dash":       {"a-b", nil, cohort.InvalidArgument},
		"transport":  {"a", []Option{WithTransports("rdma")}, cohort.InvalidArgument},
	} {
		if a, err := Join(ctx, st, c.worker, c.opts...); !errors.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
			if a != nil {
				_ = a.Close()
			}
		}
	}
	first, err := Join(ctx, st, "a", WithAddr("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if _, err := Join(ctx, st, "a", WithAddr("127.0.0.1:0")); !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("the same name: %v", err)
	}
	if _, err := Join(ctx, st, "b", WithRank(0), WithAddr("127.0.0.1:0")); !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("the same id: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := Join(short, st, "s", WithRank(1), WithWorldSize(2), WithAddr("127.0.0.1:0")); !errors.Is(err,
		cohort.DeadlineExceeded) && !errors.Is(err, cohort.Mismatch) {
		t.Errorf("static into dynamic: %v", err)
	}
}

// TestComeAndGo lets workers join and leave a dynamic world.
func TestComeAndGo(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		ctx := testContext(t)
		st := store.NewMemory()
		t.Cleanup(func() { _ = st.Close() })
		reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x })
		join := func(name string) *Agent {
			a, err := Join(ctx, st, name, append([]Option{WithAddr("127.0.0.1:0"), WithHandlers(reg)}, opts...)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = a.Close() })
			return a
		}
		a := join("a")
		for i := range 3 {
			b := join("b")
			if len(a.Workers()) != 2 || int(b.ID()) != i+1 {
				t.Fatalf("round %d: %v, id %d", i, a.Workers(), b.ID())
			}
			if n, err := Call[int](ctx, a, "b", "v.echo", i); err != nil || n != i {
				t.Fatalf("round %d: %v, %v", i, n, err)
			}
			if n, err := Call[int](ctx, b, "a", "v.echo", i); err != nil || n != i {
				t.Fatalf("round %d back: %v, %v", i, n, err)
			}
			if err := b.Shutdown(ctx); err != nil {
				t.Fatal(err)
			}
			if len(a.Workers()) != 1 {
				t.Fatalf("round %d: b is still known: %v", i, a.Workers())
			}
			if _, err := Call[int](ctx, a, "b", "v.echo", i); !errors.Is(err, cohort.NotFound) {
				t.Fatalf("call of a worker that left: %v", err)
			}
		}
		if err := a.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGuest calls Go workers from outside of the world.
func TestGuest(t *testing.T) { transports(t, testGuest) }

func testGuest(t *testing.T, opts ...Option) {
	t.Helper()
	ctx := testContext(t)
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x })
	a, err := Join(ctx, st, "a", append(opts, WithAddr("127.0.0.1:0"), WithHandlers(reg))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	g, err := NewClient(ctx, st, "visitor", WithAddr("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	if n, failed := Call[int](ctx, g, "a", "v.echo", 4); failed != nil || n != 4 {
		t.Fatalf("%v, %v", n, failed)
	}
	info, err := Call[map[string]int](ctx, g, "a", debugInfo)
	if err != nil || info["agent.thread_pool_size"] != DefaultConcurrency {
		t.Fatalf("debug info: %v, %v", info, err)
	}
	if n, failed := Async[int](ctx, g, "a", "v.echo", 5).Await(ctx); failed != nil || n != 5 {
		t.Fatalf("%v, %v", n, failed)
	}
	if met, failed := g.Workers(ctx); failed != nil || len(met) != 1 || met[0].Name != "a" {
		t.Errorf("the client sees %v, %v", met, failed)
	}
	if _, failed := Remote[int](ctx, g.a, "a", "v.echo", 1); failed != nil { // what a client cannot do the other side refuses
		t.Error(failed)
	}
	workers, err := ListWorkers(ctx, st, 0)
	if err != nil || len(workers) != 1 || workers[0].Name != "a" || !workers[0].Go {
		t.Errorf("workers: %+v, %v", workers, err)
	}
}
