// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
)

// formLimit bounds the forming of a group in which a rank dies or stops. A rank that waits for one whose end no connection shows
// waits that long.
const formLimit = 6 * time.Second

// opLimit bounds the operation in a group that was made in spite of all. Over gloo's wire, which has no heartbeat, a rank that is
// stopped is found by that only, and not named.
const opLimit = 6 * time.Second

// aftermath is how the survivors go on after the forming of a group has failed.
type aftermath uint8

const (
	without aftermath = iota // they form a smaller group
	later                    // another process takes the victim's place when all of them have failed
	atOnce                   // another process takes it at once: they may not have noticed anything
	aftermaths
)

func (a aftermath) String() string {
	return [...]string{"without a replacement", "with a replacement later", "with a replacement at once"}[a]
}

// TestFormingProcesses kills or stops a rank's process at a point of group.New, by its own hand. The survivors must name it, in time, and
// can form another group over the same store, with another process in its place or without one. A process that was stopped comes
// back when they have, and must end too.
func TestFormingProcesses(t *testing.T) {
	for _, transport := range transports {
		failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
			Name: string(transport), Share: 20, Events: []string{failpointtest.KillEvent, failpointtest.StopEvent},
			Points: append([]string{"tcpstore."}, formPoints...),
			Run:    func(p *failpointtest.ProcessRun) []map[string]int { return runForming(p, transport) },
		})
	}
}

// begin returns when all ranks are there: the start of a process takes long on a busy machine.
func begin(ctx context.Context, s store.Store, size int) error {
	n, err := s.Add(ctx, "test/ready", 1)
	if err == nil && n == int64(size) {
		err = s.Set(ctx, "test/begin", nil)
	}
	if err != nil {
		return err
	}
	return s.Wait(ctx, "test/begin")
}

// formingRank is a rank whose group forms while the victim's moment comes.
func formingRank(ctx context.Context, s store.Store, o orders, res *result) {
	if !o.Replaces {
		if err := begin(ctx, s, size); err != nil {
			res.end(err)
			return
		}
	}
	stop := func() map[string]int { return nil }
	isVictim := o.Rank == o.Victim && !o.Replaces // it tries once: if it comes back, its place may be taken
	if isVictim {
		stop = failpointtest.OwnMoment(o.Moments)
	}
	join := func(opts ...group.Option) error {
		opts = append([]group.Option{group.WithConnectTimeout(timeout)}, opts...)
		g, err := group.New(ctx, s, cohort.Rank(o.Rank), size,
			with(o.Transport, append(opts, group.WithTimeout(opLimit), group.WithHeartbeat(heartbeat))...)...)
		if h := stop(); res.Hits == nil {
			res.Hits = h
		}
		stop = func() map[string]int { return nil }
		if err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		return run(ctx, g, operations[0], 10)
	}
	if o.After == atOnce && !isVictim {
		var err error
		for range formingTries {
			if err = join(); err == nil {
				res.Again = ""
				return
			}
			res.end(err) // the last one must name the victim too
			res.Again += err.Error() + "; "
		}
		return
	}
	if !o.Replaces {
		res.end(join(group.WithConnectTimeout(formLimit)))
		fmt.Println(failedLine)
		if !o.Regroup || isVictim {
			return
		}
	}
	rank, n := o.Rank, size
	if o.After == without {
		if n--; rank > o.Victim {
			rank--
		}
	}
	if err := regroup(ctx, s, rank, n, o.Transport); err != nil {
		res.Again = err.Error()
	}
}

// runForming is one run: a world forms, and something happens to one of its ranks.
func runForming(p *failpointtest.ProcessRun, transport group.Transport) []map[string]int {
	server := listen(p)
	if server == nil {
		return nil
	}
	defer func() { _ = server.Close() }()
	o := orders{
		Victim: int(p.Seed % size), Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Forming: true,
		Regroup: p.Fatal(), After: aftermath(p.Seed / size % uint64(aftermaths)),
	}
	if !p.Fatal() {
		o.After = without
	}
	ranks := make([]*process, size)
	for rank := range size {
		o := o
		if o.Rank = rank; rank == o.Victim {
			o.Moments = p.Victims[0].Moments
		}
		ranks[rank] = start(p, o)
	}
	p.Does(o.After.String())
	victim := ranks[o.Victim]
	survivors := slices.Delete(slices.Clone(ranks), o.Victim, o.Victim+1)
	if !p.Fatal() {
		for rank, c := range ranks {
			if c.wait(p, rank); c.result == nil || c.result.Err != "" {
				p.Errorf("rank %d, to which nothing happened for good: %+v", rank, c.result)
			}
		}
		if victim.result == nil {
			return nil
		}
		return []map[string]int{victim.result.Hits}
	}
	select {
	case <-victim.moment:
	case <-victim.ended: // the point was not reached
		for rank, c := range ranks {
			_ = c.cmd.Process.Kill()
			c.wait(p, rank)
		}
		return nil
	}
	p.Happened()
	var replacement *process
	if o.After != without {
		if o.After == later {
			for _, c := range survivors {
				select {
				case <-c.failed:
				case <-c.ended:
				}
			}
		}
		o.Rank, o.Replaces = o.Victim, true
		replacement = start(p, o)
		replacement.wait(p, o.Victim)
	}
	for rank, c := range ranks {
		if rank != o.Victim {
			c.wait(p, rank)
		}
	}
	wake(p, victim, o.Victim, p.Victims[0].Event)
	for rank, c := range ranks {
		if rank != o.Victim {
			judgeForming(p, o, fmt.Sprintf("rank %d, %v", rank, o.After), c, victim.event)
		}
	}
	if r := replacement; r != nil && (r.result == nil || r.result.Again != "") {
		p.Errorf("the replacement of rank %d, %v: %+v", o.Victim, o.After, r.result)
	}
	return nil
}

// judgeForming is the oracle of a survivor.
func judgeForming(p *failpointtest.ProcessRun, o orders, who string, c *process, event time.Time) {
	switch res := c.result; {
	case !judgeFormed(p, who, res):
	case res.Err != "" && o.After == atOnce:
		judgeLoss(p, who, o.Transport, res, []int{o.Victim}, time.Time{})
	case res.Err != "":
		judgeLoss(p, who, o.Transport, res, []int{o.Victim}, event)
	case o.After != atOnce:
		p.Errorf("%s has noticed nothing", who)
	}
}
