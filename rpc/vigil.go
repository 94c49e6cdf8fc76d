// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

// vigilEvery is how often a vigil looks after its workers.
const vigilEvery = 200 * time.Millisecond

// vigil looks after workers that somebody waits for. A connection that ended says nothing about the process behind it: a
// worker without one is called again, and only if nobody listens there any more it is dead, and the wait is over.
type vigil struct {
	ctx    context.Context //nolint:containedctx // what is done under this vigil
	agent  *Agent
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
	dead   atomic.Pointer[dist.Error]
}

// watchOver begins a vigil. Its context ends with ctx, or when one of the workers is certainly dead.
func (a *Agent) watchOver(ctx context.Context, names []string) *vigil {
	v := &vigil{agent: a}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	v.work.Go(func() { v.run(names) })
	return v
}

// end ends the vigil and says who died, if somebody did.
func (v *vigil) end() *dist.Error {
	v.cancel(nil)
	v.work.Wait()
	return v.dead.Load()
}

func (v *vigil) run(names []string) {
	busy := make([]atomic.Bool, len(names))
	tick := time.NewTicker(vigilEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-v.ctx.Done():
			return
		case <-v.agent.ctx.Done():
			return
		}
		for i, name := range names {
			p, err := v.agent.peer(name)
			switch {
			case errors.Is(err, dist.NotFound): // of a dynamic world
				v.lost(&dist.Error{Op: "rpc: worker", Code: dist.PeerLost, Rank: dist.NoRank, Peer: name, Detail: "it has left"})
			case err == nil && p.current() == nil && (p.met.Load() || v.agent.joined.Load()) && busy[i].CompareAndSwap(false, true):
				v.work.Go(func() {
					defer busy[i].Store(false)
					v.visit(p)
				})
			}
		}
	}
}

// visit tries to reach a worker to which there is no connection.
func (v *vigil) visit(p *peer) {
	ctx, cancel := context.WithTimeout(v.ctx, 5*time.Second)
	defer cancel()
	_, err := p.connect(ctx)
	if !errors.Is(err, errRefused) {
		return
	}
	e := dist.New("rpc: worker", dist.PeerLost, "its process has ended: nobody listens at its address")
	e.Peer, e.Rank, e.Err = p.name, dist.Rank(p.worker), err
	v.lost(e)
}

func (v *vigil) lost(e *dist.Error) {
	if v.dead.CompareAndSwap(nil, e) {
		v.cancel(e)
	}
}
