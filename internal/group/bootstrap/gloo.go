// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
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

// PyTorch ranks with TORCH_DISTRIBUTED_DEBUG=DETAIL compare operations in a helper group beside the group itself.

// helperLimit is how long the other ranks may take to show up in the helper group once all are connected in the group
// itself: PyTorch makes the one right after the other.
const helperLimit = 30 * time.Second

// connectChecks joins the helper group, after the group itself as PyTorch does.
func (a *attempt) connectChecks(ctx context.Context) error {
	p := a.p
	limited, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	mesh, err := gloo.Connect(limited, gloo.Config{
		Rank: p.Rank, Size: p.size(), Store: p.Store, Prefix: a.Layout.WrapperPrefix(p.torchBase(), p.TorchName),
		Generation: a.Layout.GenerationOf(),
		Devices:    p.Devices, StoreAddr: p.route(), Timeout: p.ConnectTimeout, Logger: p.Logger, Hook: p.Hook, Group: p.Name + " (checks)",
	})
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			e := cohort.Wrap("group: checks", cohort.Mismatch, err)
			e.Code = cohort.Mismatch
			e.Detail = "this rank is set to check operations (" + collective.DebugVariable +
				"=DETAIL or WithDetail), but a PyTorch rank does not: give it to all ranks or to none"
			return e
		}
		return err
	}
	a.Wrapper = gloo.NewWrapper(a.Layout, mesh)
	p.Logger.Info("operations are checked before they run", slog.String("group", p.Name),
		slog.String("reason", collective.DebugVariable+"=DETAIL"))
	return nil
}

// errDetail is the error of a rank that did not learn what the PyTorch ranks were.
func errDetail(rank int) error {
	e := cohort.Newf("group: checks", cohort.Mismatch,
		"rank %d runs with %s=DETAIL, which checks every collective beforehand: set it for this process too, or use WithDetail",
		rank, collective.DebugVariable)
	e.Rank = cohort.Rank(rank)
	return e
}

// helperSeen looks for a PyTorch rank that waits in the helper group.
func helperSeen(ctx context.Context, p *Plan, layout gloo.Layout, members []member) error {
	prefix := layout.WrapperPrefix(p.torchBase(), p.TorchName)
	for r := range members {
		if members[r].Go {
			continue
		}
		if has, err := p.Store.Check(ctx, layout.FirstKey(prefix, r)); err == nil && has {
			return errDetail(r)
		}
	}
	return nil
}

// The pace at which a rank looks for a helper group that it was not told of.
const (
	helperFirst = 2 * time.Millisecond
	helperPause = 200 * time.Millisecond
	helperTries = 300
)

// WatchHelper returns an error when it turns out that PyTorch's ranks check operations and wait for this one, and nil when that is
// out of the question: ctx has ended, or a collective has succeeded, of which proven tells. PyTorch 2.x says nothing after a
// group was made, so at no other moment is that certain.
func (f *Formed) WatchHelper(ctx context.Context, p *Plan, proven func() bool) error {
	if f.torch != torch26 || p.Detail || p.Origin != FromPython {
		return nil
	}
	pause := helperFirst
	t := time.NewTimer(pause)
	defer t.Stop()
	for range helperTries {
		failpoint.At("bootstrap.helper")
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if proven() {
			return nil
		}
		if err := helperSeen(ctx, p, f.Layout, f.Members); err != nil {
			if proven() {
				return nil
			}
			return err
		}
		pause = min(2*pause, helperPause)
		t.Reset(pause)
	}
	return nil
}
