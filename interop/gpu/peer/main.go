// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command peer is the Go member of the jobs in this folder: a rank of a gloo group, or an RPC worker that returns what it is
// sent. See the README beside it.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/world"
)

func main() { os.Exit(peer()) }

func peer() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	run := map[string]func(context.Context) error{"group": runGroup, "rpc": runRPC}
	if len(os.Args) != 2 || run[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peer group|rpc")
		return 2
	}
	if err := run[os.Args[1]](ctx); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		return 1
	}
	return 0
}

// runGroup takes part in what gloo.py does: an all-reduce, a broadcast from the Go rank and an all-gather.
func runGroup(ctx context.Context) error {
	w, err := world.Join(ctx, "env://")
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return err
	}
	values := []float32{float32(w.Rank()), 1, 2, 3}
	if err = group.AllReduceSlice(ctx, g, values, group.Sum); err != nil {
		return err
	}
	from := []float32{7, 8, 9, 10}
	if err = group.BroadcastSlice(ctx, g, from, g.Rank()); err != nil {
		return err
	}
	all, err := group.AllGatherSlice(ctx, g, []float32{float32(w.Rank())})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(os.Stdout, "go: reduced", values, "gathered", all)
	if err = g.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	return w.Shutdown(ctx)
}

// runRPC serves peer.echo until the world shuts down.
func runRPC(ctx context.Context) error {
	w, err := world.Join(ctx, "env://")
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	reg := rpc.NewRegistry().MustHandle("peer.echo", func(x any) any { return x })
	if _, err = w.RPC(ctx, "go", rpc.WithHandlers(reg)); err != nil {
		return err
	}
	return w.Shutdown(ctx)
}
