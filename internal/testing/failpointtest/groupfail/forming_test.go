// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
)

// formingTries bounds how often a rank joins: an attempt can be lost to one rank's event.
const formingTries = 4

// formPoints are the points of a group that forms.
var formPoints = []string{"group.", "transport.", "bootstrap.", "assemble.", "shm.", "tcp.", "lanes.", "gloo.", "native."}

// TestForming ends the context of a rank that joins, or closes the group that a sub-group is made from, at any moment. A rank that
// failed joins again, as a program does, and in the end all ranks have a group that works.
func TestForming(t *testing.T) {
	for _, transport := range transports {
		failpointtest.Test(t, failpointtest.Scenario{
			Name: string(transport), Share: 4, Points: formPoints,
			Events: []failpointtest.Event{failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline},
			Run: func(r *failpointtest.Run) {
				s := store.NewMemory()
				r.Cleanup(func() { _ = s.Close() })
				forming(r, nil, func(ctx context.Context, rank int) (*group.Group, error) {
					return group.New(ctx, s, cohort.Rank(rank), size, joinOptions(transport)...)
				})
			},
		})
		failpointtest.Test(t, failpointtest.Scenario{
			Name: string(transport) + "-sub", Share: 8, Points: formPoints,
			Events: []failpointtest.Event{failpointtest.Cancel, failpointtest.Deadline, {Name: closeEvent, Where: failpointtest.Beside}},
			Run: func(r *failpointtest.Run) {
				parents := formed(r, transport)
				if parents == nil {
					return
				}
				forming(r, parents, func(ctx context.Context, rank int) (*group.Group, error) {
					return parents[rank].NewGroup(ctx, nil, group.WithLocalSync())
				})
			},
		})
	}
}

func joinOptions(transport group.Transport) []group.Option {
	return with(transport, group.WithTimeout(timeout), group.WithHeartbeat(rarely))
}

// forming lets all ranks join until they have a group that works. parents are the groups that it is made from, if it is a sub-group.
func forming(r *failpointtest.Run, parents []*group.Group, join func(ctx context.Context, rank int) (*group.Group, error)) {
	own := r.Context()
	r.On(closeEvent, func() { _ = parents[victim].Close() })
	late := r.Rand.IntN(2 * size) // a rank that joins late, or none
	all, cancel := context.WithTimeout(context.Background(), timeout)
	r.Cleanup(cancel)
	r.Does("forming")
	r.Begin()
	calls := make([]*failpointtest.Call, size)
	for rank := range size {
		calls[rank] = r.Go(fmt.Sprintf("rank %d", rank), timeout+5*time.Second, func() error {
			if rank == late {
				time.Sleep(30 * time.Millisecond)
			}
			err := joinUntilItWorks(all, own, rank, join)
			if err != nil {
				cancel() // the others would wait for this rank
			}
			return err
		})
	}
	r.Wait()
	r.End()
	for _, c := range calls {
		// No group can be made from one that is closed, so the others cannot go on.
		r.Check(c, r.Allow(cohort.Closed, closeEvent), r.Allow(cohort.Canceled, closeEvent), r.Allow(cohort.PeerLost, closeEvent))
	}
}

// joinUntilItWorks joins a group and uses it. The first time the victim does so with a context that may end.
func joinUntilItWorks(all, own context.Context, rank int, join func(ctx context.Context, rank int) (*group.Group, error)) error {
	var last error
	for try := range formingTries {
		ctx := all
		if rank == victim && try == 0 {
			ctx = own
		}
		g, err := join(ctx, rank)
		if err == nil {
			err = run(all, g, operations[0], 10)
			if e, ok := errors.AsType[*cohort.Error](err); ok && e.Code == cohort.PeerLost && g.GlobalRanks()[e.Rank] != victim {
				err = fmt.Errorf("rank %d is blamed, and it was rank %d that left: %w", g.GlobalRanks()[e.Rank], victim, err)
				return errors.Join(err, g.Close())
			}
			if closing := g.Close(); closing != nil && err == nil {
				err = closing
			}
			if err == nil || cohort.CodeOf(err) == cohort.Closed { // closed with its parent, when the others may have been done
				return err
			}
			last = err
			continue // the victim left at the last moment, when the others had the group
		}
		last = err
		if ctx != own || own.Err() == nil || !errors.Is(err, own.Err()) {
			return err
		}
	}
	return fmt.Errorf("no group after %d tries: %w", formingTries, last)
}

// formed returns a group over a store of its own, both of which end with the run, or nil if it failed.
func formed(r *failpointtest.Run, transport group.Transport) []*group.Group {
	s := store.NewMemory()
	r.Cleanup(func() { _ = s.Close() })
	groups := form(r, s, joinOptions(transport))
	if groups != nil {
		r.Cleanup(func() { closeAll(groups) })
	}
	return groups
}
