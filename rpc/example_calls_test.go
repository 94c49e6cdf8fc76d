// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// pair starts two workers of one process, a and b, which serve the same functions; stop ends both.
func pair(reg *rpc.Registry) (a, b *rpc.Agent, stop func()) {
	st := store.NewMemory()
	join := func(name string) *rpc.Agent {
		agent, err := rpc.Join(context.Background(), st, name, rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg))
		if err != nil {
			log.Fatal(err)
		}
		return agent
	}
	a, b = join("a"), join("b")
	return a, b, func() {
		_, _, _ = a.Close(), b.Close(), st.Close()
	}
}

// A static world: all workers start together, know each other, and stop together.
func ExampleJoin() {
	ctx := context.Background()
	st := store.NewMemory() // in a job: the store that the rendezvous gave
	defer func() { _ = st.Close() }()
	worker := func(rank int) error {
		agent, err := rpc.Join(ctx, st, fmt.Sprintf("worker%d", rank), rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(2),
			rpc.WithAddr("127.0.0.1:0"))
		if err != nil {
			return err
		}
		if rank == 0 {
			fmt.Println(agent.Workers())
		}
		return agent.Shutdown(ctx) // waits for the others
	}
	done := make(chan error)
	for rank := range 2 {
		go func() { done <- worker(rank) }()
	}
	fmt.Println(<-done, <-done)
	// Output:
	// [{worker0 0} {worker1 1}]
	// <nil> <nil>
}

func ExampleCall() {
	type Report struct { // a dict in Python: {"epoch": 3, "loss": 0.5}
		Epoch int
		Loss  float64
	}
	a, _, stop := pair(rpc.NewRegistry().
		MustHandle("train.report", func(epoch int, scale float64) Report { return Report{epoch, 0.25 * scale} },
			rpc.Params("epoch", "scale")))
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := rpc.Call[Report](ctx, a, "b", "train.report", 3, rpc.Kw{"scale": 2})
	fmt.Println(r, err)
	_, err = rpc.Call[Report](ctx, a, "b", "train.report", "three", 2)
	fmt.Println(errors.Is(err, cohort.InvalidArgument), err)
	_, err = rpc.Call[Report](ctx, a, "b", "train.stop")
	fmt.Println(errors.Is(err, cohort.NotFound), err)
	// Output:
	// {3 0.5} <nil>
	// true rpc: call "train.report": invalid argument: rank 1 (peer b): TypeError: rpc: arguments "train.report": invalid argument: argument "epoch": a Python str does not fit a Go int
	// true rpc: call "train.stop": not found: rank 1 (peer b): AttributeError: the Go worker "b" has no handler "train.stop"
}

func ExampleAsync() {
	a, _, stop := pair(rpc.NewRegistry().MustHandle("math.square", func(n int) int { return n * n }))
	defer stop()

	ctx := context.Background()
	squares := make([]*cohort.Future[int], 4)
	for i := range squares {
		squares[i] = rpc.Async[int](ctx, a, "b", "math.square", i) // all are under way
	}
	all, err := cohort.All(squares...).Await(ctx)
	fmt.Println(all, err)
	// Output: [0 1 4 9] <nil>
}

// The error of a handler: Python callers see the exception of that class, Go callers a RemoteError as the cause.
func ExampleRaise() {
	a, _, stop := pair(rpc.NewRegistry().MustHandle("data.batch", func(i int) ([]float64, error) {
		return nil, rpc.Raise("IndexError", "no batch %d", i)
	}))
	defer stop()

	_, err := rpc.Call[[]float64](context.Background(), a, "b", "data.batch", 7)
	if remote, ok := errors.AsType[*rpc.RemoteError](err); ok {
		fmt.Println(remote.Kind, "at", remote.Worker+":", remote.Message)
	}
	// Output: IndexError at b: no batch 7
}

// The forms of a handler.
func ExampleRegistry_Handle() {
	type scale struct {
		Xs     []float64
		Factor float64 `rpc:"factor"`
	}
	reg := rpc.NewRegistry().
		MustHandle("m.add", func(x, y int) int { return x + y }, rpc.Params("x", "y")). // the names are for keyword arguments
		MustHandle("m.scale", func(_ context.Context, in scale) ([]float64, error) {
			for i := range in.Xs {
				in.Xs[i] *= in.Factor
			}
			return in.Xs, nil
		}).
		MustHandle("m.count", func(r *rpc.Request) int { return len(r.Args) }).      // whatever was given
		MustHandle("m.relay", func(ctx context.Context, n int) *cohort.Future[int] { // answered later, without a goroutine
			return rpc.Async[int](ctx, rpc.AgentFrom(ctx), "a", "m.add", n, 1)
		})
	a, _, stop := pair(reg)
	defer stop()

	ctx := context.Background()
	for _, call := range []struct {
		fn   string
		args []any
	}{
		{"m.add", []any{1, rpc.Kw{"y": 2}}},
		{"m.scale", []any{[]float64{1, 2}, 10}},
		{"m.count", []any{1, "two", nil}},
		{"m.relay", []any{4}},
	} {
		v, err := rpc.Call[any](ctx, a, "b", call.fn, call.args...)
		fmt.Println(call.fn, v, err)
	}
	// Output:
	// m.add 3 <nil>
	// m.scale [10 20] <nil>
	// m.count 3 <nil>
	// m.relay 5 <nil>
}

// All workers exchange a value, and wait for each other.
func ExampleAllGather() {
	a, b, stop := pair(nil)
	defer stop()

	ctx := context.Background()
	done := make(chan error)
	go func() {
		_, err := rpc.AllGather(ctx, b, 2)
		if err == nil {
			err = rpc.Barrier(ctx, b)
		}
		done <- err
	}()
	all, err := rpc.AllGather(ctx, a, 1)
	fmt.Println(all, err, rpc.Barrier(ctx, a), <-done)
	// Output: map[a:1 b:2] <nil> <nil> <nil>
}

// A tool looks into a running world without being one of its workers.
func ExampleClient() {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	ctx := context.Background()
	reg := rpc.NewRegistry().MustHandle("train.epoch", func() int { return 12 })
	trainer, err := rpc.Join(ctx, st, "trainer", rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = trainer.Close() }()

	workers, err := rpc.ListWorkers(ctx, st, 0)
	fmt.Println(len(workers), workers[0].Name, workers[0].Go, err)
	client, err := rpc.NewClient(ctx, st, "tool", rpc.WithAddr("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	epoch, err := rpc.Call[int](ctx, client, "trainer", "train.epoch")
	fmt.Println(epoch, err, len(trainer.Workers()))
	// Output:
	// 1 trainer true <nil>
	// 12 <nil> 1
}

// Interceptors see every call on both sides, and the trace context of a caller reaches the handler.
func ExampleWithServeInterceptors() {
	ctx := context.Background()
	report := func(ctx context.Context, call rpc.CallInfo) (context.Context, func(error), error) {
		fmt.Println(call.Peer, "calls", call.Func, "in trace", observe.Trace(ctx))
		return ctx, func(err error) { fmt.Println("done:", err) }, nil
	}
	reg := rpc.NewRegistry().MustHandle("m.add", func(a, b int) int { return a + b })
	st := store.NewMemory()
	agent, err := rpc.Join(ctx, st, "w0", rpc.WithRank(0), rpc.WithWorldSize(1), rpc.WithAddr("127.0.0.1:0"),
		rpc.WithHandlers(reg), rpc.WithServeInterceptors(report))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = agent.Close() }()
	sum, err := rpc.Call[int](observe.WithTrace(ctx, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), agent, "w0", "m.add", 3, 4)
	fmt.Println(sum, err)
	// Output:
	// w0 calls m.add in trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
	// done: <nil>
	// 7 <nil>
}
