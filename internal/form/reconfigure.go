// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/gloo/wire"
	"github.com/cohort-dist/cohort/internal/moment"
)

// Claim takes the uuid, as rank 0, and makes sure on the other ranks that it was not used before.
func (p *Plan) Claim(ctx context.Context, handles []string) error {
	const op = "group: reconfigure"
	key := gloo.ClaimKey(p.meshPrefix(gloo.Torch26))
	used := func(by string) error {
		e := dist.Newf(op, dist.AlreadyExists, "uuid %d was used before, by %q: every reconfiguration needs another one", p.UUID, by)
		e.Key = key
		return e
	}
	moment.At("group.reconfigure.claim")
	if p.Rank == 0 {
		// PyTorch's ranks do not read it. What is random tells two claims of one rank apart.
		own := handles[0] + " " + rand.Text()
		got, err := p.Store.CompareAndSet(ctx, key, nil, []byte(own))
		if err != nil {
			return dist.Wrap(op, dist.Unavailable, err)
		}
		if string(got) != own {
			return used(string(got))
		}
		return nil
	}
	got, err := p.Store.Get(ctx, key)
	if err != nil && ctx.Err() != nil {
		e := dist.Ended(ctx, op)
		e.Rank, e.Key, e.Detail = 0, key, "the new rank 0, "+handles[0]+", did not appear"
		return e
	}
	if err != nil {
		return dist.Wrap(op, dist.Unavailable, err)
	}
	if by, _, _ := strings.Cut(string(got), " "); by != handles[0] {
		return used(by)
	}
	return nil
}

// refuseLazy ends the making of a group with PyTorch ranks that connect at first use: their second reconfiguration would
// never connect.
func (a *attempt) refuseLazy(ctx context.Context) error {
	p := a.p
	for r, m := range a.Members {
		if m.Go {
			continue
		}
		raw, err := readIfThere(ctx, p.Store, a.Layout.FirstKey(p.meshPrefix(a.Layout), r))
		if err != nil {
			return err
		}
		if record, err := wire.ParseRecord(raw, p.size()); err == nil && record.IDs == nil {
			e := dist.Newf("group: reconfigure", dist.NotSupported,
				"PyTorch rank %d publishes no identifiers (TORCH_GLOO_LAZY_INIT or GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER is set): a second reconfiguration of such a rank never connects; unset it", r)
			e.Rank = dist.Rank(r)
			return e
		}
	}
	return nil
}
