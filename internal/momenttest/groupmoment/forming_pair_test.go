// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupmoment

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/momenttest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// pairSize is the size of a world in which something happens to two ranks: two are left.
const pairSize = 4

// pairOf returns the two ranks that something happens to with a seed.
func pairOf(seed uint64) []int {
	first := seed % pairSize
	return []int{int(first), int((first + 1 + seed/pairSize%(pairSize-1)) % pairSize)}
}

// TestFormingPairs kills or stops one or two ranks' processes at points of group.New, by their own hands, or lets them be late. Those that
// are left must name one to which something happened, in time, and can form another group over the same store.
func TestFormingPairs(t *testing.T) {
	for _, transport := range transports {
		momenttest.TestProcesses(t, momenttest.ProcessScenario{
			Name: string(transport), Share: 20, Events: []string{momenttest.KillEvent, momenttest.StopEvent}, Victims: 2,
			Points: append([]string{"tcpstore."}, formPoints...),
			Run:    func(p *momenttest.ProcessRun) []map[string]int { return runPair(p, transport) },
		})
	}
}

// pairRank is a rank whose group forms while the moments of one or two ranks come.
func pairRank(ctx context.Context, s store.Store, o orders, res *result) {
	if err := begin(ctx, s, pairSize); err != nil {
		res.end(err)
		return
	}
	stop := momenttest.OwnMoment(o.Moments)
	g, err := group.New(ctx, s, dist.Rank(o.Rank), pairSize, group.WithTransport(o.Transport), group.WithConnectTimeout(formLimit), group.WithTimeout(opLimit), group.WithHeartbeat(heartbeat))
	res.Hits = stop()
	if err == nil {
		err = run(ctx, g, operations[0], 10)
		_ = g.Close()
	}
	res.end(err)
	fmt.Println(failedLine)
	if o.Regroup {
		regroupLeft(ctx, s, o, res)
	}
}

// runPair is one run.
func runPair(p *momenttest.ProcessRun, transport group.Transport) []map[string]int {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		p.Errorf("%v", err)
		return nil
	}
	defer func() { _ = server.Close() }()
	pair := pairOf(p.Seed)
	ranks := make([]*process, pairSize)
	for rank := range ranks {
		o := orders{Rank: rank, Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Pair: true, Regroup: p.Fatal()}
		if i := slices.Index(pair, rank); i >= 0 {
			o.Moments = p.Victims[i].Moments
		}
		ranks[rank] = start(p, o)
	}
	var left, hit []int
	var last time.Time // of what happened
	for rank, c := range ranks {
		if c.settle(p, rank) {
			left = append(left, rank)
			continue
		}
		p.Happened()
		hit = append(hit, rank)
		if c.event.After(last) {
			last = c.event
		}
	}
	if err := tellLeft(server.Addr().String(), left); err != nil {
		p.Errorf("%v", err)
	}
	for _, rank := range left {
		ranks[rank].wait(p, rank)
	}
	for _, rank := range hit {
		wakeOne(p, ranks[rank], rank, p.Victims[slices.Index(pair, rank)].Event)
	}
	for _, rank := range left {
		judgePair(p, transport, rank, ranks[rank], hit, last)
	}
	hits := make([]map[string]int, len(pair))
	for i, rank := range pair {
		if res := ranks[rank].result; res != nil {
			hits[i] = res.Hits
		}
	}
	return hits
}

// judgePair is the oracle of a rank that is left.
func judgePair(p *momenttest.ProcessRun, transport group.Transport, rank int, c *process, hit []int, last time.Time) {
	res := c.result
	switch {
	case res == nil:
		p.Errorf("rank %d has said nothing", rank)
		return
	case res.Again != "":
		p.Errorf("rank %d could not form another group: %s", rank, res.Again)
	}
	switch {
	case res.Err == "" && len(hit) > 0:
		p.Errorf("rank %d has noticed nothing", rank)
	case res.Err != "" && len(hit) == 0:
		p.Errorf("rank %d, and nobody died: %s", rank, res.Err)
	}
	if res.Err == "" || len(hit) == 0 {
		return
	}
	code, stops := dist.Code(res.Code), slices.ContainsFunc(p.Victims, func(f momenttest.Fate) bool { return f.Event == momenttest.StopEvent })
	if stops && transport == group.Gloo && code == dist.DeadlineExceeded && res.Rank == dist.NoRank {
		return
	}
	if !slices.Contains([]dist.Code{dist.PeerLost, dist.Unavailable, dist.DeadlineExceeded}, code) || !slices.Contains(hit, int(res.Rank)) {
		p.Errorf("rank %d: %s (code %v, rank %d), and something happened to %v", rank, res.Err, code, res.Rank, hit)
	}
	bound := formLimit + lostSoon
	if stops {
		bound += heartbeat
	}
	if took := res.Ended.Sub(last); took > bound {
		p.Errorf("rank %d noticed after %v", rank, took)
	}
}

// wakeOne ends a process, or lets it go on if it was stopped: the world that it belongs to is gone, and it must find out.
func wakeOne(p *momenttest.ProcessRun, c *process, rank int, event string) {
	if event != momenttest.StopEvent {
		_ = c.cmd.Process.Kill()
		c.wait(p, rank)
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-c.failed:
	case <-c.ended:
	case <-time.After(5 * timeout):
		p.Errorf("rank %d came back and has not ended", rank)
	}
	_ = c.cmd.Process.Kill() // it is not one of those that form another group
	c.wait(p, rank)
}
