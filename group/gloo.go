// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/link"
)

// connectGloo joins gloo's mesh the way PyTorch's ranks expect it, store barrier and sequence number included.
func (c *choice) connectGloo(ctx context.Context, g *Group, p *plan) (link.Mesh, error) {
	p.family.layout = c.layout
	base := p.torchBase()
	mesh, err := gloo.Connect(ctx, gloo.Config{
		Rank: g.rank, Size: g.size, Store: p.store, Prefix: c.layout.MeshPrefix(base, p.torchName), Generation: c.layout.GenerationOf(),
		Devices: p.config.devices, StoreAddr: p.config.storeAddr, Timeout: p.config.connectTimeout, Logger: p.config.logger,
		Hook: p.config.hook, Group: g.name,
	})
	if err != nil {
		return nil, err
	}
	if c.torch != torchNone {
		err := c.lookAgain(ctx, p)
		if err == nil {
			err = settle(ctx, p, c.layout, g.rank)
		}
		if err != nil {
			mesh.Fail(err)
			_ = mesh.Close()
			return nil, err
		}
	}
	return mesh, nil
}

// settle does what PyTorch does in the store after a group was made: a barrier of the whole world, and in 1.13 the sequence
// number. rank is the own rank in the group, less than 0 for a rank that is no member.
func settle(ctx context.Context, p *plan, layout gloo.Layout, rank int) error {
	const op = "group: store barrier"
	base := p.torchBase()
	if layout == gloo.Torch113 || p.config.initBarrier {
		key := layout.BarrierKey(base, p.index)
		n, err := p.store.Add(ctx, key, 1)
		if err != nil {
			return dist.Wrap(op, dist.Unavailable, err)
		}
		world := int64(len(p.family.world))
		if layout == gloo.Torch26 {
			if n == world {
				if err := p.store.Set(ctx, layout.LastWorkerKey(base, p.index), []byte("1")); err != nil {
					return dist.Wrap(op, dist.Unavailable, err)
				}
			}
			if err := p.store.Wait(ctx, layout.LastWorkerKey(base, p.index)); err != nil {
				return dist.Wrap(op, dist.Unavailable, err)
			}
		} else if err := pollCounter(ctx, p, key, n, world); err != nil {
			return err
		}
	}
	key := layout.SequenceKey(base, p.torchName)
	switch {
	case key == "" || rank < 0:
		return nil
	case rank == 0:
		if err := p.store.Set(ctx, key, make([]byte, 8)); err != nil {
			return dist.Wrap(op, dist.Unavailable, err)
		}
	default:
		if _, err := p.store.Get(ctx, key); err != nil {
			return dist.Wrap(op, dist.Unavailable, err)
		}
	}
	return nil
}

// pollCounter waits until a counter has reached want, as PyTorch 1.13 does.
func pollCounter(ctx context.Context, p *plan, key string, have, want int64) error {
	for have < want {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			e := dist.FromContext("group: store barrier", ctx)
			e.Key = key
			return e
		}
		var err error
		if have, err = p.store.Add(ctx, key, 0); err != nil {
			return dist.Wrap("group: store barrier", dist.Unavailable, err)
		}
	}
	return nil
}
