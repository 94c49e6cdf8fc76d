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
	// Among Go ranks nothing stands where PyTorch's ranks look, or a next group would take what is left there for theirs.
	prefix := c.place.Prefix() + "/gloo"
	if c.torch != torchNone {
		prefix = p.meshPrefix(c.layout)
	}
	mesh, err := gloo.Connect(ctx, gloo.Config{
		Rank: g.rank, Size: g.size, Store: p.store, Prefix: prefix, Generation: c.layout.GenerationOf(), Judge: g.verdict.judge, OnLost: g.peerLost,
		Devices: p.config.devices, StoreAddr: p.config.storeAddr, Timeout: p.config.connectTimeout, Logger: p.config.logger,
		Hook: p.config.hook, Group: g.name,
	})
	if err != nil {
		return nil, err
	}
	if c.torch == torchNone {
		return mesh, nil
	}
	err = c.lookAgain(ctx, p)
	if err == nil && p.origin == fromReconfigure {
		err = c.refuseLazy(ctx, p)
	}
	if err == nil && p.config.detail && p.origin == fromPython {
		err = c.connectChecks(ctx, g, p)
	}
	if err == nil && p.origin == fromPython {
		err = settle(ctx, p, c.layout, g.rank, c.members)
	}
	if err != nil {
		mesh.Fail(err)
		_ = mesh.Close()
		if g.checks != nil {
			_ = g.checks.wrapper.Close()
		}
		return nil, err
	}
	return mesh, nil
}

// settle does what PyTorch does in the store after a group was made: a barrier of the whole world, and in 1.13 the sequence
// number. rank is the own rank in the group, less than 0 for a rank that is no member; members are only given to a member.
func settle(ctx context.Context, p *plan, layout gloo.Layout, rank int, members []member) error {
	const op = "group: store barrier"
	base := p.torchBase()
	sequence := layout.SequenceKey(base, p.torchName)
	if rank == 0 && sequence != "" {
		// The other ranks wait for it after the barrier, or, where operations are checked, before.
		if err := p.store.Set(ctx, sequence, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			return dist.Wrap(op, dist.Unavailable, err)
		}
	}
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
		} else if err := pollCounter(ctx, p, key, n, world, func() error {
			if p.config.detail {
				return nil
			}
			return helperSeen(ctx, p, layout, members)
		}); err != nil {
			return err
		}
	}
	if sequence != "" && rank > 0 {
		if _, err := p.store.Get(ctx, sequence); err != nil {
			return dist.Wrap(op, dist.Unavailable, err)
		}
	}
	return nil
}

// pollCounter waits until a counter has reached want, as PyTorch 1.13 does, or look finds a reason why it never will.
func pollCounter(ctx context.Context, p *plan, key string, have, want int64, look func() error) error {
	for have < want {
		if err := look(); err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			e := dist.Ended("group: store barrier", ctx)
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
