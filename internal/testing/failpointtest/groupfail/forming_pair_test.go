// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"cmp"
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

// pairSize is the size of a world in which something happens to two ranks: two are left.
const pairSize = 4

// pairOf returns the two ranks that something happens to with a seed.
func pairOf(seed uint64) []int {
	first := seed % pairSize
	return []int{int(first), int((first + 1 + seed/pairSize%(pairSize-1)) % pairSize)}
}

// TestFormingPairs kills or stops one or two ranks' processes at points of group.New, by their own hands, or lets them be late. Those that
// are left must name one to which something happened, all the same, in time, and can form another group over the same store.
func TestFormingPairs(t *testing.T) {
	for _, transport := range transports {
		failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
			Name: string(transport), Share: 20, Events: []string{failpointtest.KillEvent, failpointtest.StopEvent}, Victims: 2,
			Points: append([]string{"tcpstore."}, formPoints...),
			Run:    func(p *failpointtest.ProcessRun) []map[string]int { return runPair(p, transport, "") },
		})
	}
}

// pairRank is a rank whose group forms while the moments of one or two ranks come.
func pairRank(ctx context.Context, s store.Store, o orders, res *result) {
	if err := begin(ctx, s, pairSize); err != nil {
		res.end(err)
		return
	}
	stop := failpointtest.OwnMoment(o.Moments)
	g, err := group.New(ctx, s, cohort.Rank(o.Rank), pairSize,
		with(o.Transport, group.WithConnectTimeout(formLimit), group.WithTimeout(opLimit), group.WithHeartbeat(heartbeat))...)
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
func runPair(p *failpointtest.ProcessRun, transport group.Transport, kind change) []map[string]int {
	server := listen(p)
	if server == nil {
		return nil
	}
	defer func() { _ = server.Close() }()
	p.Does(cmp.Or(string(kind), "forming"))
	pair := pairOf(p.Seed)
	ranks := make([]*process, pairSize)
	for rank := range ranks {
		o := orders{
			Rank: rank, Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Pair: true, Change: kind,
			Regroup: p.Fatal(),
		}
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
		wake(p, ranks[rank], rank, p.Victims[slices.Index(pair, rank)].Event)
	}
	if kind != "" { // its ranks have other numbers
		hit = unknown(ranks, left)
	}
	judgePair(p, transport, ranks, left, hit, last)
	hits := make([]map[string]int, len(pair))
	for i, rank := range pair {
		if res := ranks[rank].result; res != nil {
			hits[i] = res.Hits
		}
	}
	return hits
}

// unknown returns the numbers in the next group that none of the ranks that are left has.
func unknown(ranks []*process, left []int) (hit []int) {
	for n := range ranks {
		if !slices.ContainsFunc(left, func(rank int) bool { return ranks[rank].result != nil && ranks[rank].result.Number == n }) {
			hit = append(hit, n)
		}
	}
	return hit
}

// judgePair is the oracle of the ranks that are left: they name one of those to which something happened, all the same.
func judgePair(p *failpointtest.ProcessRun, transport group.Transport, ranks []*process, left, hit []int, last time.Time) {
	named := map[cohort.Rank]bool{}
	for _, rank := range left {
		res, who := ranks[rank].result, fmt.Sprintf("rank %d", rank)
		if !judgeFormed(p, who, res) {
			continue
		}
		switch {
		case res.Err == "" && len(hit) > 0:
			p.Errorf("%s has noticed nothing", who)
		case res.Err != "" && len(hit) == 0:
			p.Errorf("%s, and no rank died: %s", who, res.Err)
		case res.Err != "":
			judgeLoss(p, who, transport, res, hit, last)
			named[res.Rank] = true
		}
	}
	delete(named, cohort.NoRank) // where that is allowed
	if len(named) > 1 {
		p.Errorf("something happened to ranks %v, and those who are left name %v", hit, named)
	}
}
