// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package rpcfail

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// joinSoon is how soon a worker has joined whatever happened before. One that dies while it joins or leaves is declared dead after
// ten seconds, and there may be two turns of waiting.
const joinSoon = 40 * time.Second

// TestDynamicProcesses kills or stops a worker's process at a point, by its own hand: while it joins a world whose workers come and
// go, while another joins, in calls, and while it leaves. The others' calls go on, and when it is dead a newcomer can join.
func TestDynamicProcesses(t *testing.T) {
	// On PyTorch's wire most seeds wait for the token of the dead: fewer of them run.
	for wire, share := range map[string]int{"cohort": 25, "uv": 100} {
		failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
			Name: wire, Share: share, Events: []string{failpointtest.KillEvent, failpointtest.StopEvent},
			Points: []string{"rpc.", "rpcworld.", "cohortwire.", "tensorpipe."},
			Run: func(p *failpointtest.ProcessRun) []map[string]int {
				return runDynamic(p, orders{Name: victim, Wire: wire, Dynamic: true, Limit: timeout, Moments: p.Victims[0].Moments})
			},
		})
	}
}

// dynamic is a run: two workers of this process that stay, the victim in another, and newcomers.
type dynamic struct {
	p      *failpointtest.ProcessRun
	o      orders
	victim *child
	agents []*rpc.Agent
}

func runDynamic(p *failpointtest.ProcessRun, o orders) []map[string]int {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		p.Errorf("%v", err)
		return nil
	}
	defer func() { _ = server.Close() }()
	o.Addr = server.Addr().String()
	d := &dynamic{p: p, o: o}
	ctx, cancel := context.WithTimeout(context.Background(), 3*joinSoon)
	defer cancel()
	for _, name := range []string{"a", "c"} {
		a, leave, failure := d.join(ctx, name)
		if failure != nil {
			p.Errorf("%s cannot join: %v", name, failure)
			return nil
		}
		defer leave()
		d.agents = append(d.agents, a)
	}
	if d.victim, err = startChild(p, o); err != nil {
		p.Errorf("%v", err)
		return nil
	}
	d.meanwhile(ctx)
	rest, end := context.WithTimeout(context.Background(), 3*joinSoon) // a victim that is stopped may have used up the time before
	defer end()
	d.after(rest)
	return []map[string]int{d.victim.hits}
}

// join makes a worker of this process. leave ends it without a word.
func (d *dynamic) join(ctx context.Context, name string) (a *rpc.Agent, leave func(), err error) {
	st, err := tcpstore.Dial(ctx, d.o.Addr)
	if err != nil {
		return nil, nil, err
	}
	limited, cancel := context.WithTimeout(ctx, joinSoon)
	defer cancel()
	a, err = rpc.Join(limited, st, name, d.o.options(0)...)
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	return a, func() {
		_ = a.Close()
		_ = st.Close()
	}, nil
}

// meanwhile is what happens beside the victim's life: calls between those who stay, calls to the victim, and another that joins.
func (d *dynamic) meanwhile(ctx context.Context) {
	rng := rand.New(rand.NewPCG(d.p.Seed, 7))
	comes := time.Duration(rng.IntN(60)) * time.Millisecond
	over := make(chan struct{})
	var work sync.WaitGroup
	for i, a := range d.agents {
		other := d.agents[1-i].Name()
		work.Go(func() {
			for n := 0; ; n++ {
				if err := once(ctx, a, other, n); err != nil {
					d.p.Errorf("%s cannot call %s: %v", a.Name(), other, err)
					return
				}
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	work.Go(func() { d.callVictim(ctx, over) })
	var joins sync.WaitGroup
	joins.Go(func() {
		time.Sleep(comes)
		d.newcomer(ctx, "d")
	})
	select {
	case <-d.victim.ended:
	case <-d.victim.moment:
	}
	joins.Wait()
	close(over)
	work.Wait()
}

// callVictim calls the victim, which may not be there yet or any more. It does not go on for ever: a worker leaves when it is idle. Every
// call ends soon.
func (d *dynamic) callVictim(ctx context.Context, over <-chan struct{}) {
	for n := range 5 * rounds {
		began := time.Now()
		err := once(ctx, d.agents[0], victim, n)
		select {
		case <-d.victim.moment:
			if d.p.Victims[0].Event == failpointtest.StopEvent {
				return // what it has begun ends with its own time only
			}
			if from := later(began, d.victim.event); time.Since(from) > lostSoon {
				d.p.Errorf("a call to the victim ended %v after its death: %v", time.Since(from), err)
			}
		default:
		}
		d.explained("a call to the victim", err)
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// explained fails the run if an error says something else than that the victim is not there, not yet or not any more.
func (d *dynamic) explained(what string, err error) {
	if err == nil {
		return
	}
	allowed := []cohort.Code{cohort.PeerLost, cohort.Unavailable, cohort.Closed, cohort.Aborted, cohort.NotFound}
	if d.p.Victims[0].Event == failpointtest.StopEvent {
		allowed = append(allowed, cohort.DeadlineExceeded)
	}
	if code := cohort.CodeOf(err); !slices.Contains(allowed, code) {
		d.p.Errorf("%s: %v (code %v)", what, err, code)
	}
	if e, ok := errors.AsType[*cohort.Error](err); ok && e.Code == cohort.PeerLost && e.Peer != "" && e.Peer != victim {
		d.p.Errorf("%s names %s: %v", what, e.Peer, err)
	}
}

// newcomer is a worker that joins, works with those who stay, and leaves. A member that is stopped, and not dead, can keep it out, and it
// says so.
func (d *dynamic) newcomer(ctx context.Context, name string) {
	a, leave, err := d.join(ctx, name)
	if err != nil {
		if d.stopped() {
			d.explained(name+"'s join", err)
			return
		}
		d.p.Errorf("%s cannot join: %v", name, err)
		return
	}
	defer leave()
	if err := work(ctx, a, "a", "c"); err != nil {
		d.p.Errorf("a newcomer: %v", err)
	}
	limited, cancel := context.WithTimeout(ctx, joinSoon)
	defer cancel()
	d.explained(name+"'s way out", a.Shutdown(limited))
}

// stopped reports whether the victim stands still and is not dead.
func (d *dynamic) stopped() bool {
	if d.p.Victims[0].Event != failpointtest.StopEvent {
		return false
	}
	select {
	case <-d.victim.moment:
	default:
		return false
	}
	select {
	case <-d.victim.ended:
		return false
	default:
		return true
	}
}

// after is what the others do when the victim is gone: a newcomer comes, and all leave.
func (d *dynamic) after(ctx context.Context) {
	select {
	case <-d.victim.ended:
	case <-d.victim.moment: // it is dead, or stopped and ended now by the process that started it
	}
	if d.p.Fatal() {
		_ = d.victim.cmd.Process.Kill()
	}
	select {
	case <-d.victim.ended:
	case <-time.After(leftSoon):
		d.p.Errorf("the victim has not ended")
		_ = d.victim.cmd.Process.Kill()
	}
	<-d.victim.ended
	_ = d.victim.cmd.Wait()
	if !d.victim.event.IsZero() {
		d.p.Happened()
	} else if d.victim.hits == nil {
		d.p.Errorf("the victim, to which nothing happened, has failed")
	}
	d.newcomer(ctx, "e")
	var leaving sync.WaitGroup
	for _, a := range d.agents {
		leaving.Go(func() {
			limited, cancel := context.WithTimeout(ctx, joinSoon)
			defer cancel()
			d.explained(a.Name()+"'s way out", a.Shutdown(limited))
		})
	}
	leaving.Wait()
}
