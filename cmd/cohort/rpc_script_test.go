// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// rpcworld VAR static|dynamic: starts two Go workers, ps and trainer, on a store whose address it puts into VAR. The
// trainer holds a reference to a tensor of ps, and one to an object that could not be made. They live until the script ends.
func rpcWorld(ts *testscript.TestScript, _ bool, args []string) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = server.Close() })
	ts.Setenv(args[0], server.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	ts.Defer(cancel)
	agents := make([]*rpc.Agent, 2)
	errs := make(chan error, 2)
	for i, name := range []string{"ps", "trainer"} {
		opts := []rpc.Option{rpc.WithRank(cohort.Rank(i)), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(scriptHandlers())}
		if args[1] == "static" {
			opts = append(opts, rpc.WithWorldSize(2))
		}
		go func() {
			st, failed := tcpstore.Dial(ctx, server.Addr().String())
			if failed == nil {
				agents[i], failed = rpc.Join(ctx, st, name, opts...)
			}
			errs <- failed
		}()
	}
	for range agents {
		ts.Check(<-errs)
	}
	for _, agent := range agents {
		ts.Defer(func() { _ = agent.Close() })
	}
	ref, err := rpc.Remote[*tensor.Tensor](ctx, agents[1], "ps", "stats.zeros", 256)
	ts.Check(err)
	ts.Check(ref.Confirmed(ctx))
	_, err = ref.Fetch(ctx)
	ts.Check(err)
	ts.Defer(func() { _ = ref.Close() })
	failed, err := rpc.Remote[float64](ctx, agents[1], "ps", "stats.mean", []float64{})
	ts.Check(err)
	if _, err := failed.Fetch(ctx); err == nil {
		ts.Fatalf("the mean of nothing has a value")
	}
	ts.Defer(func() { _ = failed.Close() })
}

func scriptHandlers() *rpc.Registry {
	return rpc.NewRegistry().
		MustHandle("stats.mean", func(xs []float64) (float64, error) {
			if len(xs) == 0 {
				return 0, rpc.Raise("ValueError", "mean of nothing")
			}
			sum := 0.0
			for _, x := range xs {
				sum += x
			}
			return sum / float64(len(xs)), nil
		}).
		MustHandle("stats.zeros", func(n int) (*tensor.Tensor, error) { return tensor.New(tensor.Float32, n) }).
		MustHandle("stats.echo", func(_ context.Context, r *rpc.Request) (any, error) {
			return py.Tuple{r.Args, r.Kwargs}, nil
		}).
		MustHandle("stats.who", func(_ context.Context, r *rpc.Request) (any, error) { return r.From.Name, nil }).
		MustHandle("stats.crash", func() { panic("a bug") }).
		MustHandle("stats.slow", func(ctx context.Context) error {
			<-ctx.Done()
			return cohort.FromContext(ctx, "stats: slow")
		})
}
