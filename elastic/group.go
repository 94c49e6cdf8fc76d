// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
)

// Group waits for the round that this process takes part in, as [Member.Next] does, and returns the group of its members, whose ranks and
// size it takes from the round. Call it at the start, and again after an operation of the group has failed and when [Member.Over] reports
// true: the group that it returned before ends with that. Where a round fails before its group exists, it asks for the next one.
//
// All calls give the same store, which can be that of the coordinator; the options are those of the first call, and
// [group.WithReconfigure] is one of them by itself. [Member.Close] closes the group. Use either Group or Next with a group of your own.
//
// Beside errors of ctx and the store it returns [cohort.Aborted] when the coordinator has ended the job, and [cohort.Closed] when all
// members have finished, or the group was closed.
func (m *Member) Group(ctx context.Context, s store.Store, opts ...group.Option) (*group.Group, error) {
	if m.group == nil {
		all := append(append([]group.Option{}, opts...), group.WithReconfigure())
		first, err := group.New(ctx, s, cohort.Rank(m.id), int(m.id)+1, all...) // handles differ by the rank
		if err != nil {
			return nil, err
		}
		m.group = first
	}
	for {
		round, err := m.Next(ctx, m.group.Handle())
		if err != nil {
			return nil, err
		}
		next, err := m.group.Reconfigure(ctx, round.UUID, round.Handles)
		if err == nil {
			m.group = next
			return next, nil
		}
		switch code := cohort.CodeOf(err); {
		case ctx.Err() != nil, code == cohort.Closed, code == cohort.InvalidArgument:
			return nil, err
		}
	}
}
