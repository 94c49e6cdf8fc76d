// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/world"
)

// rpcRank is a program whose ranks use RPC alone and hang, in the scene that its argument names:
//
//	call       rank 0 calls a function of rank 1 that does not return
//	chain      rank 0 calls rank 1, which calls rank 2 for that, whose function does not return
//	circle     rank 0 calls rank 1, which calls rank 0, which waits for its own call
//	shutdown   rank 1 does not come to the shutdown
func rpcRank() {
	if err := hangInRPC(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hangInRPC(ctx context.Context, scene string) error {
	w, err := world.Join(ctx, "env://")
	if err != nil {
		return err
	}
	rank := int(w.Rank())
	var agent *rpc.Agent
	joined := make(chan struct{})
	handlers := rpc.NewRegistry().
		MustHandle("scene.stuck", stuck).
		MustHandle("scene.pass", func(ctx context.Context, fn string, to ...string) error { <-joined; return pass(ctx, agent, fn, to) })
	agent, err = w.RPC(ctx, "worker"+strconv.Itoa(rank), rpc.WithHandlers(handlers), rpc.WithTimeout(0))
	if err != nil {
		return err
	}
	close(joined)
	if rank == 0 {
		switch scene {
		case "call":
			err = pass(ctx, agent, "scene.stuck", []string{"worker1"})
		case "chain":
			err = pass(ctx, agent, "scene.stuck", []string{"worker1", "worker2"})
		case "circle":
			err = pass(ctx, agent, "scene.stuck", []string{"worker1", "worker0"})
		}
	}
	if scene == "shutdown" && rank == 1 {
		err = stuck(ctx)
	}
	if err != nil {
		return err
	}
	return agent.Shutdown(ctx)
}

// pass calls the first worker, which calls the next one, and so on; the last one calls fn.
func pass(ctx context.Context, agent *rpc.Agent, fn string, to []string) error {
	if len(to) == 1 {
		_, err := rpc.Call[any](ctx, agent, to[0], fn)
		return err
	}
	args := []any{fn}
	for _, name := range to[1:] {
		args = append(args, name)
	}
	_, err := rpc.Call[any](ctx, agent, to[0], "scene.pass", args...)
	return err
}

// stuck does not return while a caller waits for it.
func stuck(ctx context.Context) error {
	<-ctx.Done()
	return cohort.FromContext(ctx, "scene")
}
