// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

var (
	// ErrRefused is the cause of a connection to a process that has ended.
	ErrRefused = errors.New("nobody listens there")
	// ErrSilent is the cause of a connection to a machine that does not answer.
	ErrSilent = errors.New("no answer from there")
)

// State is how this worker stands with another one.
type State = worldcore.State

// Watched is who can be looked after.
type Watched interface {
	State(name string) State
	// Reach connects to a worker. Its errors wrap [ErrRefused] and [ErrSilent].
	Reach(ctx context.Context, name string) error
	// Workers are all workers by id, this one included.
	Workers() []Worker
}

// Wait says what it means when a worker is gone.
type Wait = worldcore.Wait

// The kinds of waits.
const (
	ClosedWait = worldcore.ClosedWait
	OpenWait   = worldcore.OpenWait
	LastWait   = worldcore.LastWait
)

// Watcher looks after workers that somebody waits for; see [worldcore.Watch].
type Watcher struct {
	ctx    context.Context //nolint:containedctx // what is done while it watches
	cancel context.CancelCauseFunc
	core   *worldcore.Watch
	work   sync.WaitGroup
}

// Watch begins to look after workers, on behalf of a wait in which all of among take part. Its context ends with ctx, or when
// one of the workers is certainly dead.
func (w *World) Watch(ctx context.Context, others Watched, names, among []string, how Wait) *Watcher {
	v := &Watcher{core: worldcore.NewWatch(w.self(), w.round, names, among, how, worldcore.WatchOptions{})}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	v.work.Go(func() {
		w.drive(v.ctx, v.core, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.lookAt(ctx, others, op) })
		if err := v.core.Err(); err != nil {
			v.cancel(err)
		}
	})
	return v
}

// Context is the context of the wait.
func (v *Watcher) Context() context.Context { return v.ctx }

// End ends it and says who died, if somebody did.
func (v *Watcher) End() *cohort.Error {
	failpoint.At("rpcworld.watch.end")
	v.cancel(nil)
	v.work.Wait()
	return v.core.Dead()
}

// guard looks after other workers while a machine waits.
type guard struct {
	w     *World
	p     Watched
	watch chan *Watcher
}

func (w *World) guard(p Watched) guard { return guard{w: w, p: p, watch: make(chan *Watcher, 1)} }

// do does what a machine asks for about other workers.
func (g guard) do(ctx context.Context, op worldcore.Op) (ev worldcore.Event) {
	switch op.Kind {
	case worldcore.OpWatch:
		v := g.w.Watch(ctx, g.p, op.Names, op.Among, op.How)
		g.watch <- v // no point: it has room
		failpoint.At("rpcworld.watch.wait")
		<-v.Context().Done()
		ev.OK = ctx.Err() == nil
	case worldcore.OpUnwatch:
		failpoint.At("rpcworld.unwatch")
		if dead := (<-g.watch).End(); dead != nil {
			ev.Err = dead
		}
	default:
		return g.w.lookAt(ctx, g.p, op)
	}
	return ev
}

// lookAt looks at other workers.
func (w *World) lookAt(ctx context.Context, others Watched, op worldcore.Op) (ev worldcore.Event) {
	switch op.Kind {
	case worldcore.OpStates:
		ev.States = make([]State, len(op.Names))
		for i, name := range op.Names {
			ev.States[i] = others.State(name)
		}
	case worldcore.OpWorkers:
		ev.Workers = others.Workers()
	case worldcore.OpIsGo:
		ev.OK = w.IsGo(ctx, op.Worker)
	case worldcore.OpReach:
		ev.Err = others.Reach(ctx, op.Worker)
		ev.Gone, ev.Silent = errors.Is(ev.Err, ErrRefused), errors.Is(ev.Err, ErrSilent)
	default:
		ev.Err = cohort.Newf("rpc: world", cohort.Internal, "operation %d is unknown here", op.Kind)
	}
	return ev
}
