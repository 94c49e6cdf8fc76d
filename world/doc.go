// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package world is the entry point of the module. [Join] joins the other processes of a job, Go or PyTorch, through one
// of PyTorch's init URLs, and returns a [World] with the store that all of them share, this process's rank and the
// number of ranks:
//
//	w, err := world.Join(ctx, "env://")
//	if err != nil {
//		return err
//	}
//	defer w.Close()
//	err = w.Store().Set(ctx, fmt.Sprintf("ready/%d", w.Rank()), []byte("yes"))
//
// [World.Group] forms the process group of all ranks, for collectives and messages:
//
//	g, err := w.Group(ctx)
//	if err != nil {
//		return err
//	}
//	err = group.AllReduceSlice(ctx, g, gradients, group.Sum)
//
// [World.RPC] makes the process a worker that calls functions of other workers by name and serves its own:
//
//	agent, err := w.RPC(ctx, "loader0", rpc.WithHandlers(reg))
//	if err != nil {
//		return err
//	}
//	mean, err := rpc.Call[float64](ctx, agent, "trainer1", "stats.mean", xs)
//
// The packages below it can be used on their own: store and its implementations, rendezvous, tensor, group and rpc.
package world
