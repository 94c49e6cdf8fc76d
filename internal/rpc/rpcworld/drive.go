// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// machine is one of package worldcore's.
type machine interface {
	Step(ev worldcore.Event) []worldcore.Op
}

// doer does what a machine asks for, except for pauses and operations of the store.
type doer func(ctx context.Context, op worldcore.Op) worldcore.Event

// drive runs a machine to its end: it does what the machine says and tells it what came of it. It returns when nothing that
// it has begun is under way any more.
func (w *World) drive(ctx context.Context, m machine, do doer) {
	d := &drive{w: w, do: do, cancels: map[int]context.CancelFunc{}, answers: make(chan worldcore.Event)}
	var stop, stopTidy context.CancelFunc
	d.ctx, stop = context.WithCancel(ctx)
	d.tidy, stopTidy = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		failpoint.At("rpcworld.end")
		d.work.Wait()
	}()
	defer stopTidy()
	defer stop()
	begun := time.Now()
	todo := m.Step(worldcore.Event{})
	for {
		ready, ended := d.begin(todo)
		if ended {
			return
		}
		todo = nil
		if len(ready) == 0 {
			failpoint.At("rpcworld.wait")
			ready = []worldcore.Event{<-d.answers}
		}
		for _, ev := range ready {
			if cancel := d.cancels[ev.ID]; cancel != nil {
				cancel()
				delete(d.cancels, ev.ID)
			}
			ev.Now = time.Since(begun)
			todo = append(todo, m.Step(ev)...)
		}
	}
}

// drive is a machine that is driven.
type drive struct {
	w         *World
	do        doer
	ctx, tidy context.Context //nolint:containedctx // of the operations
	cancels   map[int]context.CancelFunc
	answers   chan worldcore.Event
	work      sync.WaitGroup
}

// begin begins operations. ready are the answers of those that are done at once: because they cannot wait, or because there
// is nothing else to wait for.
func (d *drive) begin(ops []worldcore.Op) (ready []worldcore.Event, ended bool) {
	for i, op := range ops {
		switch {
		case op.Kind == worldcore.OpEnd:
			return nil, true
		case op.Kind == worldcore.OpCancel:
			if cancel := d.cancels[op.N]; cancel != nil {
				cancel()
			}
		case op.Kind.Instant(), len(ops) == 1 && len(d.cancels) == 0:
			ctx, cancel := d.context(op)
			ready = append(ready, d.perform(ctx, ops[i]))
			cancel()
		default:
			ctx, cancel := d.context(op)
			d.cancels[op.ID] = cancel
			d.work.Go(func() {
				ev := d.perform(ctx, op)
				failpoint.At("rpcworld.answer")
				select {
				case d.answers <- ev:
				case <-d.tidy.Done(): // the machine has ended
				}
			})
		}
	}
	return ready, false
}

// context returns the context of an operation.
func (d *drive) context(op worldcore.Op) (context.Context, context.CancelFunc) {
	ctx := d.ctx
	if op.Tidy {
		ctx = d.tidy
	}
	if op.For > 0 && op.Kind != worldcore.OpPause {
		return context.WithTimeout(ctx, op.For)
	}
	return context.WithCancel(ctx)
}

// perform does an operation.
func (d *drive) perform(ctx context.Context, op worldcore.Op) worldcore.Event {
	failpoint.At("rpcworld.op")
	var ev worldcore.Event
	switch op.Kind {
	case worldcore.OpPause:
		if !pause(ctx, op.For) {
			ev.Err = cohort.FromContext(ctx, "rpc: world")
		}
	case worldcore.OpCheck, worldcore.OpRead, worldcore.OpGet, worldcore.OpSet, worldcore.OpAdd, worldcore.OpSwap, worldcore.OpWait,
		worldcore.OpDelete:
		ev = d.w.ask(ctx, op)
	default:
		ev = d.do(ctx, op)
	}
	ev.ID = op.ID
	return ev
}

// ask does an operation of the store.
func (w *World) ask(ctx context.Context, op worldcore.Op) (ev worldcore.Event) {
	st := w.base
	if op.Round != worldcore.NoRound {
		st = w.roundStore(op.Round)
	}
	var raw []byte
	switch op.Kind { //nolint:exhaustive // the store's
	case worldcore.OpCheck:
		ev.OK, ev.Err = st.Check(ctx, op.Keys...)
	case worldcore.OpRead:
		ev.Text, ev.Err = lookUp(ctx, st, op.Key)
	case worldcore.OpGet:
		raw, ev.Err = st.Get(ctx, op.Key)
		ev.Text = string(raw)
	case worldcore.OpSet:
		ev.Err = st.Set(ctx, op.Key, []byte(op.Text))
	case worldcore.OpAdd:
		var sum int64
		sum, ev.Err = st.Add(ctx, op.Key, int64(op.N))
		ev.N = int(sum)
	case worldcore.OpSwap:
		raw, ev.Err = st.CompareAndSet(ctx, op.Key, []byte(op.Old), []byte(op.Text))
		ev.Text = string(raw)
	case worldcore.OpWait:
		ev.Err = st.Wait(ctx, op.Keys...)
	case worldcore.OpDelete:
		_, ev.Err = st.Delete(ctx, op.Key)
	}
	return ev
}

func (w *World) roundStore(k int) store.Store { return store.Prefix(RoundPrefix(k), w.base) }

// pause waits. It reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	failpoint.At("rpcworld.pause")
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
