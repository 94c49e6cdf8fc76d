// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

const (
	// vigilEvery is how often a vigil looks after its workers.
	vigilEvery = 200 * time.Millisecond
	// strangersAfter is how long a wait lasts before workers are called to which there was no connection so far.
	strangersAfter = 500 * time.Millisecond
	// hearEvery is how many looks there are to one at what others have found.
	hearEvery = 5
	// silentFor is how long the machine of a worker answers nothing at all before it is given up. The kernel asks an
	// idle connection every few seconds.
	silentFor = 20 * time.Second
	// graceOfDeath and graceOfLeave are how much longer an open wait may last.
	graceOfDeath = time.Second
	graceOfLeave = 5 * time.Second
)

// vigil looks after workers that somebody waits for. A connection that ended says nothing about the process behind it: a
// worker without one is called again, and only if nobody listens there any more it is dead, and the wait is over. So it is
// when the worker's machine answers nothing for a while.
//
// There need not have been a connection: when the wait lasts, strangers are called too. In a static world the workers
// share this, and tell each other in the store whom they have found dead.
type vigil struct {
	ctx    context.Context //nolint:containedctx // what is done under this vigil
	agent  *Agent
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
	dead   atomic.Pointer[dist.Error]
	names  []string // who is waited for; the death of others does not matter
	how    wait

	hearing atomic.Bool // one look at the store at a time: it may not answer
}

// wait says what it means when a worker is gone.
type wait int8

const (
	// closedWait is one that nobody leaves before this worker: somebody has died.
	closedWait wait = iota
	// openWait is one that others may leave before: what they have seen is on its way to us, and the wait goes on a little.
	openWait
	// lastWait is the last one, after which everybody goes: whoever waits finds out himself what it means.
	lastWait
)

// charge is a worker that is looked after. silent belongs to the visit under way.
type charge struct {
	busy   atomic.Bool
	silent time.Time // since when it cannot be reached; zero while it can
}

// watchOver begins a vigil. Its context ends with ctx, or when one of the workers is certainly dead.
func (a *Agent) watchOver(ctx context.Context, names []string, how wait) *vigil {
	v := &vigil{agent: a, names: names, how: how}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	v.work.Go(v.run)
	return v
}

// end ends the vigil and says who died, if somebody did.
func (v *vigil) end() *dist.Error {
	v.cancel(nil)
	v.work.Wait()
	return v.dead.Load()
}

func (v *vigil) run() {
	charges := make([]charge, len(v.names))
	var strangers []string
	begun := time.Now()
	tick := time.NewTicker(vigilEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-v.ctx.Done():
			return
		case <-v.agent.ctx.Done():
			return
		}
		if strangers == nil && time.Since(begun) >= strangersAfter {
			strangers = v.agent.strangers(v.ctx, v.names)
		}
		if n%hearEvery == 0 && v.hearing.CompareAndSwap(false, true) {
			v.work.Go(v.hear)
		}
		for i, name := range v.names {
			p, err := v.agent.peer(name)
			if errors.Is(err, dist.NotFound) { // of a dynamic world
				e := &dist.Error{Op: "rpc: worker", Code: dist.PeerLost, Rank: dist.NoRank, Peer: name, Detail: "it has left"}
				v.work.Go(func() { v.lost(e, graceOfLeave) })
			}
			if err == nil && (p.met.Load() || slices.Contains(strangers, name)) {
				v.see(p, &charges[i])
			}
		}
	}
}

// see looks after a worker. One to which there is no connection is called.
func (v *vigil) see(p *peer, c *charge) {
	if !c.busy.CompareAndSwap(false, true) {
		return
	}
	s := p.current()
	if s != nil && (s.pipe == nil || s.pipe.Silence() < silentFor) { // a link has heartbeats of its own
		c.silent = time.Time{}
		c.busy.Store(false)
		return
	}
	v.work.Go(func() {
		defer c.busy.Store(false)
		if s != nil {
			v.gone(p, "its machine does not answer", nil)
			return
		}
		v.visit(p, c)
	})
}

// visit tries to reach a worker to which there is no connection.
func (v *vigil) visit(p *peer, c *charge) {
	if c.silent.IsZero() {
		c.silent = time.Now()
	}
	ctx, cancel := context.WithTimeout(v.ctx, 2*silentFor)
	defer cancel()
	_, err := p.connect(ctx)
	switch {
	case errors.Is(err, errRefused):
		v.gone(p, "its process has ended: nobody listens at its address", err)
	case !errors.Is(err, errSilent):
		c.silent = time.Time{}
	case time.Since(c.silent) >= silentFor/2:
		v.gone(p, "its machine does not answer", err)
	}
}

// gone ends the wait for a worker and tells the others.
func (v *vigil) gone(p *peer, how string, cause error) {
	e := dist.New("rpc: worker", dist.PeerLost, how)
	e.Peer, e.Rank, e.Err = p.name, dist.Rank(p.worker), cause
	if v.how != lastWait {
		if first := v.agent.firstDeath(v.ctx, e); slices.Contains(v.names, first.Peer) {
			e = first
		}
	}
	v.lost(e, graceOfDeath)
}

// firstDeath tells the other workers of a static world of a death, unless they know of an earlier one: then that is the
// cause, and this one its consequence.
func (a *Agent) firstDeath(ctx context.Context, e *dist.Error) *dist.Error {
	if a.cfg.worldSize == 0 {
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	first, err := a.st.CompareAndSet(ctx, keyLost, nil, []byte(e.Peer))
	if err != nil || string(first) == e.Peer || string(first) == a.name {
		return e
	}
	return a.deathOf(string(first), "another worker has found that it has ended")
}

// blame tells the other workers of a static world whose death has made this one give up, before they find that it is gone.
func (a *Agent) blame(ctx context.Context, err error) {
	var e *dist.Error
	if !errors.As(err, &e) || e.Code != dist.PeerLost {
		return
	}
	if _, known := a.peer(e.Peer); known == nil {
		_ = a.firstDeath(ctx, e)
	}
}

// hear asks the store whom others have found dead.
func (v *vigil) hear() {
	defer v.hearing.Store(false)
	a := v.agent
	if a.cfg.worldSize == 0 {
		return
	}
	if there, err := a.st.Check(v.ctx, keyLost); err != nil || !there {
		return
	}
	name, err := a.st.Get(v.ctx, keyLost)
	if err == nil && slices.Contains(v.names, string(name)) {
		v.lost(a.deathOf(string(name), "another worker has found that it has ended"), graceOfDeath)
	}
}

// lost ends the wait, unless another death does, or it ends well within the grace where that may be.
func (v *vigil) lost(e *dist.Error, grace time.Duration) {
	if !v.dead.CompareAndSwap(nil, e) {
		return
	}
	if v.how == openWait {
		select {
		case <-time.After(grace):
		case <-v.ctx.Done():
			return
		}
	}
	v.cancel(e)
}

// strangers are those of the workers that this one calls, once a wait lasts, although it had nothing to do with them. In
// a static world it is those behind it in the order of ranks up to the second Go worker: so everybody is looked after by two,
// and a large world does not end with a connection of everybody to everybody.
func (a *Agent) strangers(ctx context.Context, names []string) []string {
	if a.cfg.worldSize == 0 {
		return names
	}
	all := a.Workers()
	at := slices.IndexFunc(all, func(w WorkerInfo) bool { return w.Name == a.name })
	out, goish := []string{}, 0
	for i := 1; i < len(all) && goish < 2; i++ {
		name := all[(at+i)%len(all)].Name
		if a.goWorker(ctx, name) {
			goish++
		}
		if slices.Contains(names, name) {
			out = append(out, name)
		}
	}
	return out
}
