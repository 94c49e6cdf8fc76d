// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupmoment

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/momenttest"
	"github.com/cohort-dist/cohort/store"
)

// formingTries bounds how often a rank joins: an attempt can be lost to one rank's event.
const formingTries = 4

// formPoints are the points of a group that forms.
var formPoints = []string{"group.", "link.", "form.", "muster.", "shm.", "tcp.", "lanes.", "gloo.", "native."}

// TestForming ends the context of a rank that joins, or closes the group that a sub-group is made from, at any moment. A rank that
// failed joins again, as a program does, and in the end all ranks have a group that works.
func TestForming(t *testing.T) {
	for _, transport := range transports {
		momenttest.Test(t, momenttest.Scenario{
			Name: string(transport), Share: 4, Points: formPoints,
			Events: []momenttest.Event{momenttest.Cancel, momenttest.CancelCause, momenttest.Deadline},
			Run: func(r *momenttest.Run) {
				s := store.NewMemory()
				r.Cleanup(func() { _ = s.Close() })
				forming(r, nil, func(ctx context.Context, rank int) (*group.Group, error) {
					return group.New(ctx, s, dist.Rank(rank), size, joinOptions(transport)...)
				})
			},
		})
		momenttest.Test(t, momenttest.Scenario{
			Name: string(transport) + "-sub", Share: 8, Points: formPoints,
			Events: []momenttest.Event{momenttest.Cancel, momenttest.Deadline, {Name: closeEvent, Where: momenttest.Beside}},
			Run: func(r *momenttest.Run) {
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
func forming(r *momenttest.Run, parents []*group.Group, join func(ctx context.Context, rank int) (*group.Group, error)) {
	own := r.Context()
	r.On(closeEvent, func() { _ = parents[victim].Close() })
	late := r.Rand.IntN(2 * size) // a rank that comes late, or nobody
	all, cancel := context.WithTimeout(context.Background(), timeout)
	r.Cleanup(cancel)
	r.Does("forming")
	r.Begin()
	calls := make([]*momenttest.Call, size)
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
		r.Check(c, r.Allow(dist.Closed, closeEvent), r.Allow(dist.Canceled, closeEvent), r.Allow(dist.PeerLost, closeEvent))
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
			if e, ok := errors.AsType[*dist.Error](err); ok && e.Code == dist.PeerLost && g.GlobalRanks()[e.Rank] != victim {
				err = fmt.Errorf("rank %d is blamed, and it was rank %d that left: %w", g.GlobalRanks()[e.Rank], victim, err)
				return errors.Join(err, g.Close())
			}
			if closing := g.Close(); closing != nil && err == nil {
				err = closing
			}
			if err == nil || dist.CodeOf(err) == dist.Closed { // closed with its parent, when the others may have been done
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
func formed(r *momenttest.Run, transport group.Transport) []*group.Group {
	s := store.NewMemory()
	r.Cleanup(func() { _ = s.Close() })
	groups := form(r, s, joinOptions(transport))
	if groups != nil {
		r.Cleanup(func() { closeAll(groups) })
	}
	return groups
}
