// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/rpc"
)

// RPC makes this process a worker of the world's RPC, under a unique name. In a world with a size all ranks must call it,
// as PyTorch's processes call init_rpc; in an open world workers join and leave. The agent ends with the World, unless it is
// shut down or closed earlier; another call joins the next round, as a second init_rpc does.
//
// It corresponds to torch.distributed.rpc.init_rpc.
func (w *World) RPC(ctx context.Context, name string, opts ...rpc.Option) (*rpc.Agent, error) {
	failpoint.At("world.rpc")
	w.mu.Lock()
	leaving := w.mu.leaving
	if !leaving {
		w.joins.Add(1)
	}
	w.mu.Unlock()
	if leaving {
		return nil, cohort.New("world: rpc", cohort.Closed, "the world was left")
	}
	defer w.joins.Done()
	ctx, release := w.whileAlive(ctx)
	defer release()
	var own []rpc.Option
	if w.Rank() != cohort.NoRank {
		own = append(own, rpc.WithRank(w.Rank()))
	}
	if w.Size() > 0 {
		own = append(own, rpc.WithWorldSize(w.Size()))
	}
	agent, err := rpc.Join(ctx, w.Store(), name, slices.Concat(own, opts)...)
	if err != nil {
		return nil, err
	}
	failpoint.At("world.rpc.joined")
	w.mu.Lock()
	if leaving = w.mu.leaving; !leaving {
		w.mu.agents = append(slices.DeleteFunc(w.mu.agents, ended), agent)
	}
	w.mu.Unlock()
	if leaving {
		_ = agent.Close()
		return nil, cohort.New("world: rpc", cohort.Closed, "the world was left while its agent joined")
	}
	return agent, nil
}

// ended reports whether an agent is closed and all of it has ended.
func ended(a *rpc.Agent) bool {
	select {
	case <-a.Done():
		return true
	default:
		return false
	}
}

// endAgents ends the agents that were made by RPC, in order or at once. They stay known, so that Close reaches those that
// Shutdown waits for.
func (w *World) endAgents(end func(*rpc.Agent) error) error {
	w.mu.Lock()
	agents := slices.Clone(w.mu.agents)
	w.mu.Unlock()
	var failed []error
	for _, agent := range slices.Backward(agents) {
		failpoint.At("world.agent.end")
		if err := end(agent); err != nil && !errors.Is(err, cohort.Closed) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
