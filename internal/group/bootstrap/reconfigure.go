// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Claim takes the uuid, as rank 0, and makes sure on the other ranks that it was not used before. If ctx ends
// meanwhile, the others are told that this rank does not come.
func (p *Plan) Claim(ctx context.Context, handles []string) error {
	claim, stop := p.claim, func() {}
	if p.Rank != 0 {
		claim, stop = p.claimed, p.watchFirst(ctx, handles)
	}
	err := claim(ctx, handles)
	stop()
	if err != nil && ctx.Err() != nil {
		p.Decline(ctx, handles)
	}
	return err
}

// Decline notifies the others that this rank does not come. It does so, too, when ctx has ended.
func (p *Plan) Decline(ctx context.Context, handles []string) {
	if p.Rank == 0 { // the others wait for the claim first
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimLimit)
		defer cancel()
		_ = p.claim(limited, handles) // an earlier one may have been successful
		if p.claimed(limited, handles) != nil {
			return
		}
	}
	p.decline(ctx)
}

// claimLimit bounds how long a rank 0 whose time is over takes to claim the uuid.
const claimLimit = time.Second

const claimOp = "group: reconfigure"

func (p *Plan) claimKey() string { return gloo.ClaimKey(p.meshPrefix(gloo.Torch26)) }

func (p *Plan) used(by string) error {
	e := cohort.Newf(claimOp, cohort.AlreadyExists, "uuid %d was used before, by %q: every reconfiguration needs another one", p.UUID, by)
	e.Key = p.claimKey()
	return e
}

// claim takes the uuid.
func (p *Plan) claim(ctx context.Context, handles []string) error {
	// PyTorch's ranks do not read it. What is random tells two claims of one rank apart.
	own := handles[0] + " " + rand.Text()
	failpoint.At("group.reconfigure.claim")
	got, err := p.Store.CompareAndSet(ctx, p.claimKey(), nil, []byte(own))
	if err != nil {
		return cohort.Wrap(claimOp, cohort.Unavailable, err)
	}
	if string(got) != own {
		return p.used(string(got))
	}
	return nil
}

// claimed waits until the new rank 0 has taken the uuid.
func (p *Plan) claimed(ctx context.Context, handles []string) error {
	failpoint.At("group.reconfigure.claimed")
	got, err := p.Store.Get(ctx, p.claimKey())
	if err != nil && ctx.Err() != nil {
		e := cohort.Ended(ctx, claimOp)
		e.Rank, e.Key, e.Detail = 0, p.claimKey(), "the new rank 0, "+handles[0]+", did not appear"
		return e
	}
	if err != nil {
		return cohort.Wrap(claimOp, cohort.Unavailable, err)
	}
	if by, _, _ := strings.Cut(string(got), " "); by != handles[0] {
		return p.used(by)
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
		if record, err := gloowire.ParseRecord(raw, p.size()); err == nil && record.IDs == nil {
			e := cohort.Newf("group: reconfigure", cohort.NotSupported,
				"PyTorch rank %d publishes no identifiers (TORCH_GLOO_LAZY_INIT or GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER is set): a "+
					"second reconfiguration of such a rank never connects; unset it", r)
			e.Rank = cohort.Rank(r)
			return e
		}
	}
	return nil
}
