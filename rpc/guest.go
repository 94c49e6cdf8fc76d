// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/store"
)

// Guest returns an agent that is no worker of the world: it can call Go workers, which need not know it, but holds no
// references and serves nothing. Tools use it to look into a running world.
func Guest(ctx context.Context, st store.Store, name string, opts ...Option) (*Agent, error) {
	opts = append(slices.Clone(opts), option(func(c *config) error { c.guest, c.rank, c.worldSize = true, -1, 0; return nil }))
	return Join(ctx, st, name, opts...)
}

func (a *Agent) startGuest(ctx context.Context) error {
	if a.cfg.round < 0 {
		k, err := a.latestRound(ctx)
		if err != nil {
			return err
		}
		a.enter(k)
	}
	return a.listen(-1)
}

// lookup finds a worker for a guest.
func (a *Agent) lookup(ctx context.Context, name string) (*peer, error) {
	workers, err := listWorkers(ctx, a.st)
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		if w.Name != name {
			continue
		}
		if !w.Go {
			return nil, dist.Newf("rpc: call", dist.NotSupported, "%q is a PyTorch worker: only members of its world can call it", name)
		}
		return a.addPeer(w.Name, rrefcore.Worker(w.ID), w.Addr, w.epoch), nil //nolint:gosec // checked
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

	epoch uint64
}

// ListWorkers reads the workers of a world from its store, without joining it. round is 0 for the first world on the
// store; see [WithRound].
func ListWorkers(ctx context.Context, st store.Store, round int) ([]WorkerEntry, error) {
	return listWorkers(ctx, store.Prefix(roundPrefix(round), st))
}

func listWorkers(ctx context.Context, st store.Store) ([]WorkerEntry, error) {
	var members []WorkerInfo
	there, err := st.Check(ctx, keyStatic)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, dist.New("rpc: list workers", dist.NotFound, "the store has no RPC world")
	}
	mode, err := st.Get(ctx, keyStatic)
	if err != nil {
		return nil, err
	}
	if string(mode) == "false" {
		if members, err = readInfos(ctx, st); err != nil {
			return nil, err
		}
	} else {
		for id := 0; id <= maxWorkerID; id++ {
			key := keyNames + strconv.Itoa(id)
			if there, err := st.Check(ctx, key); err != nil || !there {
				if err != nil {
					return nil, err
				}
				break
			}
			name, err := st.Get(ctx, key)
			if err != nil {
				return nil, err
			}
			members = append(members, WorkerInfo{Name: string(name), ID: id})
		}
	}
	out := make([]WorkerEntry, 0, len(members))
	for _, m := range members {
		w := WorkerEntry{WorkerInfo: m}
		if there, err := st.Check(ctx, keyAddrs+m.Name); err != nil {
			return nil, err
		} else if there {
			addr, err := st.Get(ctx, keyAddrs+m.Name)
			if err != nil {
				return nil, err
			}
			w.Addr = string(addr)
		}
		if there, err := st.Check(ctx, keyCohort+m.Name); err != nil {
			return nil, err
		} else if there {
			raw, err := st.Get(ctx, keyCohort+m.Name)
			if err != nil {
				return nil, err
			}
			w.epoch, _ = strconv.ParseUint(string(raw), 16, 64)
		}
		isGo, err := st.Check(ctx, keyGo+m.Name)
		if err != nil {
			return nil, err
		}
		w.Go = isGo
		out = append(out, w)
	}
	return out, nil
}
