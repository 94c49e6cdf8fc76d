// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
)

// refuse ends a collective that is not run. Where PyTorch's ranks refuse it too, this rank takes the sequence
// number that they take for it, and takes part in the check that they make before: all stay in step. Where they perform it,
// the group ends at once, with the reason, instead of having them wait for their timeout.
func (g *Group) refuse(ctx context.Context, w *Work, err error) *Work {
	r, ok := errors.AsType[*collective.Refusal](err)
	if !ok {
		return w.complete(err)
	}
	w.call.Subject, w.call.Sparse = r.Subject, r.Sparse
	switch r.Where {
	case torchcaps.Nowhere:
		end := *r.Reason
		end.Rank = g.rank
		end.Detail = "rank " + g.rank.String() + " cannot take part in what the PyTorch ranks perform, so the group ends: " + end.Detail
		g.fail(&end)
		w.complete(&end)
	case torchcaps.AtTheWait, torchcaps.AtTheCall, torchcaps.BeforeValues, torchcaps.BeforeSum:
		if g.checks != nil {
			return g.checked(ctx, w, r.Numbers(), r)
		}
		g.skip(r.Numbers())
		w.complete(r.Reason)
	case torchcaps.InPython:
		w.complete(r.Reason)
	}
	return w
}
