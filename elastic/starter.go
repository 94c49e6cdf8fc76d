// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store"
)

// Starter is for a process that starts members of a group whose [Coordinator] is in another process, such as a launcher
// on another node. It reserves IDs for them and reports to the coordinator which of them have ended.
type Starter struct{ store store.Store }

// NewStarter returns a starter of members that find their coordinator through s. [WithPrefix] is the only option that
// matters here.
func NewStarter(s store.Store, opts ...Option) (*Starter, error) {
	if s == nil {
		return nil, cohort.New("elastic: starter", cohort.InvalidArgument, "no store")
	}
	return &Starter{store.Prefix(newConfig(opts, Option.applyMember).prefix, s)}, nil
}

// String says what it is.
func (s *Starter) String() string { return "elastic.Starter" }

// Reserve returns the first of n consecutive IDs for members that the caller starts: they join with [WithID].
func (s *Starter) Reserve(ctx context.Context, n int) (ID, error) { return reserve(ctx, s.store, n) }

// Lost reports that the process of a member has ended: the member is left out at once, without waiting for [WithSilence].
func (s *Starter) Lost(ctx context.Context, member ID) error {
	const op = "elastic: lost"
	data, err := json.Marshal(question{Member: member, Lost: true})
	if err != nil {
		return cohort.Wrap(op, cohort.Internal, err)
	}
	n, err := s.store.Add(ctx, "asks", 1)
	if err == nil {
		err = s.store.Set(ctx, askKey(n), data)
	}
	if err != nil {
		return cohort.Wrap(op, cohort.Unavailable, err)
	}
	return nil
}

// Ended waits until the job has ended, and returns the members that had fallen silent: their processes may be hanging.
func (s *Starter) Ended(ctx context.Context) (silent []ID, err error) {
	const op = "elastic: ended"
	for {
		if err = s.store.Wait(ctx, endKey); err == nil {
			break
		}
		if ctx.Err() != nil || !errors.Is(err, store.ErrTimeout) {
			return nil, cohort.Wrap(op, cohort.Unavailable, err)
		}
	}
	raw, err := s.store.Get(ctx, endKey)
	if err != nil {
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	var a answer
	if err = printable.Unmarshal(raw, &a); err != nil {
		return nil, cohort.Wrap(op, cohort.Protocol, err)
	}
	return a.Silent, nil
}
