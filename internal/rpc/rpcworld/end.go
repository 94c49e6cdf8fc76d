// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
)

// Calls counts the calls of this worker that are under way.
type Calls interface {
	// Idle waits until there is none.
	Idle(ctx context.Context) error
	// Freeze returns how many there are, and keeps new ones from beginning until Thaw.
	Freeze() int
	Thaw()
}

// EndStatic leaves a static world in order: when no worker has a call under way; see [worldcore.ending].
func (w *World) EndStatic(ctx context.Context, p Party, calls Calls) error {
	m := worldcore.NewEnding(w.self(), w.round, w.Others(p), w.mixed)
	w.drive(ctx, m, departure{w.guard(p), calls}.do)
	return m.Err()
}

// departure does what the end of a world asks for.
type departure struct {
	guard
	calls Calls
}

func (d departure) do(ctx context.Context, op worldcore.Op) (ev worldcore.Event) {
	switch op.Kind {
	case worldcore.OpIdle:
		ev.Err = d.calls.Idle(ctx)
	case worldcore.OpFreeze:
		ev.N = d.calls.Freeze()
	case worldcore.OpThaw:
		d.calls.Thaw()
	default:
		return d.guard.do(ctx, op)
	}
	return ev
}

// Others are the names of all workers but this one, in order.
func (w *World) Others(p watched) []string {
	var names []string
	for _, x := range p.Workers() {
		if x.Name != w.cfg.Name {
			names = append(names, x.Name)
		}
	}
	slices.Sort(names)
	return names
}

// GaveUp tells the other workers of a static world that this one gives up its shutdown and why, before they find that it is gone: the
// reason is the worker whose death this one has found, if it has. If they know of a loss before, that is the cause.
func (w *World) GaveUp(ctx context.Context, p watched, err error) {
	if err == nil || !w.Static() {
		return
	}
	loss := worldcore.GivenUp(w.cfg.Name, err)
	if dead := deadIn(err); dead != w.cfg.Name {
		if _, known := rankOf(p, dead); known {
			loss = worldcore.Loss{Worker: dead}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), gaveUpTime)
	defer cancel()
	_, _ = w.st.CompareAndSet(ctx, keyLost, nil, []byte(loss.Text()))
}

// deadIn returns the name in an error that says that a worker has died. Errors around it have the code, but need not have the name.
func deadIn(err error) string {
	e, ok := errors.AsType[*cohort.Error](err)
	for ok && e.Code == cohort.PeerLost && e.Peer == "" {
		e, ok = errors.AsType[*cohort.Error](e.Err)
	}
	if !ok || e.Code != cohort.PeerLost {
		return ""
	}
	return e.Peer
}

// gaveUpTime bounds how long a shutdown whose time is over lasts, to say so.
const gaveUpTime = 500 * time.Millisecond

// deathError is the error of a wait for a worker that died.
func deathError(p watched, worker, how string) *cohort.Error {
	e := cohort.New("rpc: worker", cohort.PeerLost, how)
	e.Peer = worker
	if rank, known := rankOf(p, worker); known {
		e.Rank = cohort.Rank(rank)
	}
	return e
}

func rankOf(p watched, worker string) (rank int, known bool) {
	for _, x := range p.Workers() {
		if x.Name == worker {
			return x.ID, true
		}
	}
	return -1, false
}
