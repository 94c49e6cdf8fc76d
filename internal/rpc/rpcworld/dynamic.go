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

// Caller is how a worker deals with the others while it joins and leaves.
type Caller interface {
	// Listen makes this worker reachable under its id, and returns the address for others.
	Listen(ctx context.Context, id int) (addr string, err error)
	// Add makes another worker known, so that it can be called. Drop forgets it.
	Add(w Worker, addr string, e Entry)
	Drop(name string)
	// AskDevices asks a worker for its devices, Announce notifies it that this worker comes, or goes.
	AskDevices(ctx context.Context, name string) error
	Announce(ctx context.Context, name string, comes bool) error
	// Reach connects to a worker. Its errors and those of the calls wrap [ErrRefused] if the worker's process has certainly ended.
	Reach(ctx context.Context, name string) error
	// Probe finds out whether a worker runs at an address, without naming this one. Its errors wrap [ErrRefused] if nothing listens
	// there, and [ErrSilent].
	Probe(ctx context.Context, addr string) error
}

// reachLimit bounds the attempt to reach a worker whose connection has ended.
const reachLimit = 5 * time.Second

// gone reports whether a call that failed with err went to a process that has ended. A connection that ended under the call leaves that
// open: a process that has ended does not take another one.
func gone(ctx context.Context, c Caller, name string, err error) bool {
	if err != nil && cohort.CodeOf(err) == cohort.PeerLost && !errors.Is(err, ErrRefused) && ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, reachLimit)
		defer cancel()
		err = c.Reach(limited, name)
	}
	return errors.Is(err, ErrRefused)
}

// Join joins a world whose workers come and go. When it fails, also because ctx ends, the world is as it was before. Package
// worldcore decides.
func (w *World) Join(ctx context.Context, c Caller) error {
	m := worldcore.NewJoin(w.self())
	w.drive(ctx, m, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.deal(ctx, c, nil, op) })
	return m.Err()
}

// Leave notifies the other workers of a dynamic world that this one goes, and takes it off the list. It does as much as it can
// in any case, and returns the first error.
func (w *World) Leave(ctx context.Context, c Caller, others func() []string) error {
	m := worldcore.NewLeave(w.self(), w.round)
	w.drive(ctx, m, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.deal(ctx, c, others, op) })
	return m.Err()
}

// deal deals with the other workers of a world.
func (w *World) deal(ctx context.Context, c Caller, others func() []string, op worldcore.Op) (ev worldcore.Event) {
	switch op.Kind {
	case worldcore.OpEnter:
		w.Enter(op.Round)
	case worldcore.OpListen:
		ev.Text, ev.Err = c.Listen(ctx, op.N)
	case worldcore.OpKnow:
		var e Entry
		if op.Key != "" {
			e, ev.Err = parseEntry(op.Worker, []byte(op.Key))
		}
		if ev.Err == nil {
			c.Add(Worker{Name: op.Worker, ID: op.N}, op.Text, e)
		}
	case worldcore.OpDrop:
		c.Drop(op.Worker)
	case worldcore.OpOthers:
		ev.Names = others()
	case worldcore.OpIsGo:
		ev.OK = w.IsGo(ctx, op.Worker)
	case worldcore.OpProbe:
		ev.Err = c.Probe(ctx, op.Text)
		ev.Gone, ev.Silent = errors.Is(ev.Err, ErrRefused), errors.Is(ev.Err, ErrSilent)
	case worldcore.OpAskDevices:
		ev.Err = c.AskDevices(ctx, op.Worker)
		ev.Gone = gone(ctx, c, op.Worker, ev.Err)
	case worldcore.OpNotifyJoin, worldcore.OpNotifyLeave:
		ev.Err = c.Announce(ctx, op.Worker, op.Kind == worldcore.OpNotifyJoin)
		ev.Gone = gone(ctx, c, op.Worker, ev.Err)
	default:
		ev.Err = cohort.Newf("rpc: world", cohort.Internal, "operation %d is unknown here", op.Kind)
	}
	return ev
}

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

// GaveUp notifies the other workers of a static world that this one gives up its shutdown and why, before they find that it is gone: the
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
