// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

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
			e.Detail = "this rank was told to check operations (" + collective.DebugVariable +
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

// errDetail is the error of a rank that was not told what the PyTorch ranks were.
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
