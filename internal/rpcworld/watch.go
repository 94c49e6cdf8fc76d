// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
)

const (
	// watchEvery is how often a watcher looks at its workers.
	watchEvery = 200 * time.Millisecond
	// unconnectedAfter is how long a wait lasts before workers are called to which there was no connection so far.
	unconnectedAfter = 500 * time.Millisecond
	// askEvery is how many looks there are to one at what others have found.
	askEvery = 5
	// silentFor is how long the machine of a worker answers nothing at all before it is given up. The kernel asks an
	// idle connection every few seconds.
	silentFor = 20 * time.Second
	// graceOfDeath and graceOfLeave are how much longer an open wait may last.
	graceOfDeath = time.Second
	graceOfLeave = 5 * time.Second
)

var (
	// ErrRefused is the cause of a connection to a process that has ended.
	ErrRefused = errors.New("nobody listens there")
	// ErrSilent is the cause of a connection to a machine that does not answer.
	ErrSilent = errors.New("no answer from there")
)

// State is how this worker stands with another one.
type State struct {
	Known     bool // a member
	ID        int
	Met       bool          // there was a connection
	Connected bool          // there is one
	Silence   time.Duration // how long the other machine has answered nothing at all on it
}

// Watched is who can be looked after.
type Watched interface {
	State(name string) State
	// Reach connects to a worker. Its errors wrap [ErrRefused] and [ErrSilent].
	Reach(ctx context.Context, name string) error
	// Workers are all workers by id, this one included.
	Workers() []Worker
}

// Wait says what it means when a worker is gone.
type Wait int8

const (
	// ClosedWait is one that nobody leaves before this worker: somebody has died.
	ClosedWait Wait = iota
	// OpenWait is one that others may leave before: what they have seen is on its way to us, and the wait goes on a little.
	OpenWait
	// LastWait is the last one, after which everybody goes: the caller decides what it means.
	LastWait
)

// Watcher looks after workers that somebody waits for. A connection that ended says nothing about the process behind it: a
// worker without one is called again, and only if nobody listens there any more it is dead, and the wait is over. So it is
// when the worker's machine answers nothing for a while.
//
// There need not have been a connection: when the wait lasts, unconnected workers are called too. In a static world the
// workers share this, and tell each other in the store whom they have found dead.
type Watcher struct {
	ctx     context.Context //nolint:containedctx // what is done while it watches
	world   *World
	others  Watched
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup
	dead    atomic.Pointer[dist.Error]
	names   []string // who is waited for; the death of others does not matter
	how     Wait
	targets []target

	asking      atomic.Bool              // one question to the store at a time: it may not answer
	unconnected atomic.Pointer[[]string] // whom to call although there was no connection; nil until it is known
}

// target is a worker that is looked after. silent belongs to the visit under way.
type target struct {
	busy   atomic.Bool
	silent time.Time // since when it cannot be reached; zero while it can
}

// Watch begins to look after workers. Its context ends with ctx, or when one of the workers is certainly dead.
func (w *World) Watch(ctx context.Context, others Watched, names []string, how Wait) *Watcher {
	v := &Watcher{world: w, others: others, names: names, how: how, targets: make([]target, len(names))}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	v.work.Go(v.run)
	return v
}

// Context is the context of the wait.
func (v *Watcher) Context() context.Context { return v.ctx }

// End ends it and says who died, if somebody did.
func (v *Watcher) End() *dist.Error {
	moment.At("rpcworld.watch.end")
	v.cancel(nil)
	v.work.Wait()
	return v.dead.Load()
}

func (v *Watcher) run() {
	begun, asked := time.Now(), false
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		moment.At("rpcworld.watch.wait")
		select {
		case <-tick.C:
		case <-v.ctx.Done():
			return
		}
		if !asked && time.Since(begun) >= unconnectedAfter {
			asked = true
			v.work.Go(v.findUnconnected) // it asks the store, which may not answer
		}
		if n%askEvery == 0 && v.asking.CompareAndSwap(false, true) {
			v.work.Go(v.ask)
		}
		var call []string
		if found := v.unconnected.Load(); found != nil {
			call = *found
		}
		for i, name := range v.names {
			s := v.others.State(name)
			if !s.Known { // of a dynamic world
				e := &dist.Error{Op: "rpc: worker", Code: dist.PeerLost, Rank: dist.NoRank, Peer: name, Detail: "it has left"}
				v.work.Go(func() { v.lost(e, graceOfLeave) })
				continue
			}
			if s.Met || slices.Contains(call, name) {
				v.see(name, s, &v.targets[i])
			}
		}
	}
}

// see looks after a worker. One to which there is no connection is called.
func (v *Watcher) see(name string, s State, t *target) {
	if !t.busy.CompareAndSwap(false, true) {
		return
	}
	if s.Connected && s.Silence < silentFor {
		t.silent = time.Time{}
		t.busy.Store(false)
		return
	}
	v.work.Go(func() {
		defer t.busy.Store(false)
		if s.Connected {
			v.gone(name, s.ID, "its machine does not answer", nil)
			return
		}
		v.visit(name, s.ID, t)
	})
}

// visit tries to reach a worker to which there is no connection.
func (v *Watcher) visit(name string, id int, t *target) {
	if t.silent.IsZero() {
		t.silent = time.Now()
	}
	ctx, cancel := context.WithTimeout(v.ctx, 2*silentFor)
	defer cancel()
	err := v.others.Reach(ctx, name)
	switch {
	case errors.Is(err, ErrRefused):
		v.gone(name, id, "its process has ended: nobody listens at its address", err)
	case !errors.Is(err, ErrSilent):
		t.silent = time.Time{}
	case time.Since(t.silent) >= silentFor/2:
		v.gone(name, id, "its machine does not answer", err)
	}
}

// gone ends the wait for a worker and tells the others.
func (v *Watcher) gone(name string, id int, how string, cause error) {
	e := dist.New("rpc: worker", dist.PeerLost, how)
	e.Peer, e.Rank, e.Err = name, dist.Rank(id), cause
	if v.how != LastWait {
		if first := v.world.FirstDeath(v.ctx, name); first != name && slices.Contains(v.names, first) {
			e = v.known(first)
		}
	}
	v.lost(e, graceOfDeath)
}

// known is the error of a death that another worker has found.
func (v *Watcher) known(name string) *dist.Error {
	e := dist.New("rpc: worker", dist.PeerLost, "another worker has found that it has ended")
	e.Peer = name
	if s := v.others.State(name); s.Known {
		e.Rank = dist.Rank(s.ID)
	}
	return e
}

// ask asks the store whom others have found dead.
func (v *Watcher) ask() {
	defer v.asking.Store(false)
	if name := v.world.KnownDeath(v.ctx); name != "" && slices.Contains(v.names, name) {
		v.lost(v.known(name), graceOfDeath)
	}
}

// lost ends the wait, unless another death does, or it ends well within the grace where that may be.
func (v *Watcher) lost(e *dist.Error, grace time.Duration) {
	if !v.dead.CompareAndSwap(nil, e) {
		return
	}
	if v.how == OpenWait && !pause(v.ctx, grace) {
		return
	}
	v.cancel(e)
}

// findUnconnected finds the workers that this one calls, once a wait lasts, although it had nothing to do with them. In a
// static world it is those behind it in the order of ranks up to the second Go worker: so everybody is looked after by two,
// and a large world does not end with a connection of everybody to everybody.
func (v *Watcher) findUnconnected() {
	if !v.world.Static() {
		v.unconnected.Store(&v.names)
		return
	}
	all := v.others.Workers()
	at := slices.IndexFunc(all, func(x Worker) bool { return x.Name == v.world.cfg.Name })
	out, goWorkers := []string{}, 0
	for i := 1; i < len(all) && goWorkers < 2; i++ {
		name := all[(at+i)%len(all)].Name
		if v.world.IsGo(v.ctx, name) {
			goWorkers++
		}
		if slices.Contains(v.names, name) {
			out = append(out, name)
		}
	}
	v.unconnected.Store(&out)
}
