// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// connectGloo joins gloo's mesh the way PyTorch's ranks expect it, store barrier and sequence number included.
func (a *attempt) connectGloo(ctx context.Context) (transport.Mesh, error) {
	p := a.p
	// Among Go ranks nothing stands where PyTorch's ranks look, or a next group would take what is left there for theirs.
	prefix := a.Place.Prefix() + "/gloo"
	if a.torch != torchNone {
		prefix = p.meshPrefix(a.Layout)
		a.lookForEarlier(ctx, prefix)
	}
	mesh, err := gloo.Connect(ctx, gloo.Config{
		Rank: p.Rank, Size: p.size(), Store: p.Store, Prefix: prefix, Generation: a.Layout.GenerationOf(), Judge: a.Failure.Judge,
		OnLost:  a.Failure.Lost,
		Devices: p.Devices, StoreAddr: p.route(), Timeout: p.ConnectTimeout, Logger: p.Logger,
		Hook: p.Hook, Group: p.Name,
	})
	if err != nil {
		return nil, err
	}
	if a.torch == torchNone {
		return mesh, nil
	}
	err = a.lookAgain(ctx)
	if err == nil {
		err = a.readBack(ctx)
	}
	if err == nil && p.Origin == FromReconfigure {
		err = a.refuseLazy(ctx)
	}
	if err == nil && p.Detail && p.Origin == FromPython {
		err = a.connectChecks(ctx)
	}
	if err == nil && p.Origin == FromPython {
		err = settle(ctx, p, a.Layout, p.Rank, a.Members)
	}
	if err != nil {
		mesh.Fail(err)
		_ = mesh.Close()
		if a.Wrapper != nil {
			_ = a.Wrapper.Close()
		}
		return nil, err
	}
	return mesh, nil
}

// earlier is what to do where a group with PyTorch ranks was made before.
const earlier = "this rank has published an address for PyTorch's ranks under the same keys before, in an earlier group or attempt, " +
	"and they may have read that one, as this rank may have read theirs: " +
	"give each attempt a prefix of its own, with group.WithStorePrefix here and PrefixStore in Python"

// lookForEarlier looks whether this rank has been in a group under the same keys before. PyTorch's ranks cannot tell
// what is left of it from what is new. It often goes well all the same, so nothing is refused.
func (a *attempt) lookForEarlier(ctx context.Context, prefix string) {
	p := a.p
	if used, err := p.Store.Check(ctx, a.Layout.FirstKey(prefix, p.Rank)); err == nil && used && !p.repeats {
		p.repeats = true
		p.Logger.Warn(earlier, slog.String("group", p.Name), slog.String("keys", prefix))
	}
}

// explainEarlier says what to do about a failure that an earlier group may have caused.
func (p *Plan) explainEarlier(err error) error {
	e, ok := errors.AsType[*cohort.Error](err)
	if !p.repeats || !ok {
		return err
	}
	told := cohort.Wrap("group: new", e.Code, err)
	told.Rank, told.Detail = e.Rank, err.Error()+" ("+earlier+")"
	return told
}

// SettleOutside does what PyTorch's ranks wait for from a rank that is not a member of a group that they make.
func SettleOutside(ctx context.Context, p *Plan) error {
	if p.Parent.torch == torch113 || p.Parent.torch != torchNone && p.InitBarrier {
		return settle(ctx, p, p.Parent.Layout, -1, nil)
	}
	return nil
}

// settle does what PyTorch does in the store after a group was made: a barrier of the whole world, and in 1.13 the sequence
// number. rank is the own rank in the group, less than 0 for a rank that is not a member; members are only given to a member.
func settle(ctx context.Context, p *Plan, layout gloo.Layout, rank int, members []member) error {
	const op = "group: store barrier"
	base := p.torchBase()
	sequence := layout.SequenceKey(base, p.TorchName)
	if rank == 0 && sequence != "" {
		// The other ranks wait for it after the barrier, or, where operations are checked, before.
		if err := p.Store.Set(ctx, sequence, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			return cohort.Wrap(op, cohort.Unavailable, err)
		}
	}
	if layout == gloo.Torch113 || p.InitBarrier {
		key := layout.BarrierKey(base, p.Index)
		n, err := p.Store.Add(ctx, key, 1)
		if err != nil {
			return cohort.Wrap(op, cohort.Unavailable, err)
		}
		world := int64(p.World)
		if layout == gloo.Torch26 {
			if n == world {
				if err := p.Store.Set(ctx, layout.LastWorkerKey(base, p.Index), []byte("1")); err != nil {
					return cohort.Wrap(op, cohort.Unavailable, err)
				}
			}
			if err := p.Store.Wait(ctx, layout.LastWorkerKey(base, p.Index)); err != nil {
				return cohort.Wrap(op, cohort.Unavailable, err)
			}
		} else if err := pollCounter(ctx, p, key, n, world, func() error {
			if p.Detail {
				return nil
			}
			return helperSeen(ctx, p, layout, members)
		}); err != nil {
			return err
		}
	}
	if sequence != "" && rank > 0 {
		if _, err := p.Store.Get(ctx, sequence); err != nil {
			return cohort.Wrap(op, cohort.Unavailable, err)
		}
	}
	return nil
}

// pollCounter waits until a counter has reached want, as PyTorch 1.13 does, or look finds a reason why it never will.
func pollCounter(ctx context.Context, p *Plan, key string, have, want int64, look func() error) error {
	for have < want {
		if err := look(); err != nil {
			return err
		}
		failpoint.At("bootstrap.poll")
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			e := cohort.Ended(ctx, "group: store barrier")
			e.Key = key
			return e
		}
		var err error
		if have, err = p.Store.Add(ctx, key, 0); err != nil {
			return cohort.Wrap("group: store barrier", cohort.Unavailable, err)
		}
	}
	return nil
}
