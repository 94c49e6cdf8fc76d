// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcworld"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/store"
)

// Guest returns an agent that is no worker of the world: it can call workers, which need not know it, but holds no
// references and serves nothing. Tools use it to look into a running world.
func Guest(ctx context.Context, st store.Store, name string, opts ...Option) (*Agent, error) {
	opts = append(slices.Clone(opts), option(func(c *config) error { c.guest, c.rank, c.worldSize = true, -1, 0; return nil }))
	return Join(ctx, st, name, opts...)
}

func (a *Agent) startGuest(ctx context.Context) error {
	if a.cfg.round < 0 {
		k, err := a.world.LatestRound(ctx)
		if err != nil {
			return err
		}
		a.world.Enter(k)
	}
	return a.listen(-1)
}

// lookup finds a worker for a guest.
func (a *Agent) lookup(ctx context.Context, name string) (*rpclink.Peer, error) {
	workers, err := rpcworld.List(ctx, a.world.Store())
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		if w.Name != name {
			continue
		}
		return a.net.AddPeer(w.Name, rrefcore.Worker(w.ID), w.Addr, w.Entry), nil //nolint:gosec // checked
	}
	e := dist.New("rpc: worker", dist.NotFound, "no such worker in the store")
	e.Key = name
	return nil, e
}

// WorkerEntry is a worker as the store knows it.
type WorkerEntry struct {
	WorkerInfo
	Addr string `json:"addr"`
	Go   bool   `json:"go"` // a Go worker, on whichever transport
}

// ListWorkers reads the workers of a world from its store, without joining it. round is 0 for the first world on the
// store; see [WithRound].
func ListWorkers(ctx context.Context, st store.Store, round int) ([]WorkerEntry, error) {
	all, err := rpcworld.List(ctx, store.Prefix(rpcworld.RoundPrefix(round), st))
	if err != nil {
		return nil, err
	}
	out := make([]WorkerEntry, len(all))
	for i, w := range all {
		out[i] = WorkerEntry{WorkerInfo: WorkerInfo(w.Worker), Addr: w.Addr, Go: w.Go}
	}
	return out, nil
}
