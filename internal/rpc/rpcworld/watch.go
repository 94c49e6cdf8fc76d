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
	ErrRefused = errors.New("nothing listens there")
	// ErrSilent is the cause of a connection to a machine that does not answer.
	ErrSilent = errors.New("no answer from there")
)

// State is how this worker stands with another one.
type State = worldcore.State

// watched is who can be looked after.
type watched interface {
	State(name string) State
	// Reach connects to a worker. Its errors wrap [ErrRefused] and [ErrSilent].
	Reach(ctx context.Context, name string) error
	// Workers are all workers by id, this one included.
	Workers() []Worker
}

// wait says what it means when a worker is gone.
type wait = worldcore.Wait

// The kinds of waits.
const (
	closedWait = worldcore.ClosedWait
	openWait   = worldcore.OpenWait
	lastWait   = worldcore.LastWait
)

// watcher looks after workers that another waits for; see [worldcore.Watch].
type watcher struct {
	ctx    context.Context //nolint:containedctx // what is done while it watches
	cancel context.CancelCauseFunc
	core   *worldcore.Watch
	work   sync.WaitGroup
}

// Watch begins to look after workers, on behalf of a wait in which all of among take part. Its context ends with ctx, or when
// one of the workers is certainly dead.
func (w *World) Watch(ctx context.Context, others watched, names, among []string, how wait) *watcher {
	v := &watcher{core: worldcore.NewWatch(w.self(), w.round, names, among, how)}
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
func (v *watcher) Context() context.Context { return v.ctx }

// End ends it and says which worker died, if one did.
func (v *watcher) End() *cohort.Error {
	failpoint.At("rpcworld.watch.end")
	v.cancel(nil)
	v.work.Wait()
	return v.core.Dead()
}

// guard looks after other workers while a machine waits.
type guard struct {
	w     *World
	p     watched
	watch chan *watcher
}

func (w *World) guard(p watched) guard { return guard{w: w, p: p, watch: make(chan *watcher, 1)} }

// do does what a machine asks for about other workers.
func (g guard) do(ctx context.Context, op worldcore.Op) (ev worldcore.Event) {
	switch op.Kind {
	case worldcore.OpWatch:
		v := g.w.Watch(ctx, g.p, op.Names, op.Among, op.How)
		g.watch <- v
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
func (w *World) lookAt(ctx context.Context, others watched, op worldcore.Op) (ev worldcore.Event) {
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
