// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cohort-dist/cohort/rpc"
)

// Counter is an object that others use through references.
type Counter struct{ n int }

// Add adds and returns the sum.
func (c *Counter) Add(by int) int { c.n += by; return c.n }

// The result stays at the worker that made it; only a reference comes back.
func ExampleRemote() {
	a, _, stop := pair(rpc.NewRegistry().MustHandle("data.table", func(n int) []int { return make([]int, n) }))
	defer stop()

	ctx := context.Background()
	table, err := rpc.Remote[[]int](ctx, a, "b", "data.table", 3) // at once
	if err != nil {
		log.Fatal(err)
	}
	value, err := table.Fetch(ctx) // a copy, when it is there
	fmt.Println(table.Owner().Name, value, err)
	_ = table.Close() // the last reference: b frees the table
	_, err = table.Fetch(ctx)
	fmt.Println(errors.Is(err, rpc.ErrRefClosed))
	// Output:
	// b [0 0 0] <nil>
	// true
}

// Methods of a Go object are called through references to it. In Python: rref.rpc_sync().add(2), with a stub class
// counters.Counter.
func ExampleCallMethod() {
	a, _, stop := pair(rpc.NewRegistry().
		MustClass("counters.Counter", (*Counter)(nil)).
		MustHandle("counters.Counter", func(n int) *Counter { return &Counter{n} }))
	defer stop()

	ctx := context.Background()
	counter, err := rpc.Remote[*Counter](ctx, a, "b", "counters.Counter", 40)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = counter.Close() }()
	sum, err := rpc.CallMethod[int](ctx, counter, "add", 2)
	fmt.Println(sum, err)
	later, err := rpc.AsyncMethod[int](ctx, counter, "add", 1).Await(ctx)
	fmt.Println(later, err)
	kept, err := rpc.RemoteMethod[int](ctx, counter, "add", 7)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	last, err := kept.Fetch(ctx)
	fmt.Println(last, err)
	// Output:
	// 42 <nil>
	// 43 <nil>
	// 50 <nil>
}

// A value of this worker is handed to another one, which uses it from there.
func ExampleNewRef() {
	a, _, stop := pair(rpc.NewRegistry().
		MustClass("counters.Counter", (*Counter)(nil)).
		MustHandle("jobs.use", func(ctx context.Context, c *rpc.Ref[*Counter]) (int, error) {
			defer func() { _ = c.Close() }() // a handler owns the references that it is given
			return rpc.CallMethod[int](ctx, c, "add", 1)
		}).
		MustHandle("jobs.lend", func(ctx context.Context) (*rpc.Ref[*Counter], error) {
			c, err := rpc.NewRef(rpc.AgentFrom(ctx), &Counter{100})
			if err == nil {
				context.AfterFunc(ctx, func() { _ = c.Close() }) // when the caller has a reference of its own
			}
			return c, err
		}))
	defer stop()

	ctx := context.Background()
	mine := &Counter{}
	ref, err := rpc.NewRef(a, mine)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = ref.Close() }()
	_, err = rpc.Call[int](ctx, a, "b", "jobs.use", ref)
	fmt.Println(mine.n, err)

	theirs, err := rpc.Call[*rpc.Ref[*Counter]](ctx, a, "b", "jobs.lend")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	sum, err := rpc.CallMethod[int](ctx, theirs, "add", 1)
	fmt.Println(sum, err)
	// Output:
	// 1 <nil>
	// 101 <nil>
}
