// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	elasticSteps = 5
	// silence is after how long a member that gives no sign of life is left out.
	silence = 2 * time.Second
)

// TestElastic kills or stops one or two members' processes at any point of their lives, or lets them be late. Those that are left take
// all their steps together, in rounds without them, and the job ends. A rank that joins too late for the last round is told so.
func TestElastic(t *testing.T) {
	failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
		Name: "all", Share: 40, Events: []string{failpointtest.KillEvent, failpointtest.StopEvent}, Victims: 2,
		Points: append([]string{"tcpstore.", "elastic."}, formPoints...),
		Run:    func(p *failpointtest.ProcessRun) []map[string]int { return runElastic(p, transportOf(p.Seed)) },
	})
}

// elasticRank is a member. Its moments may come as soon as all processes are there.
func elasticRank(ctx context.Context, s store.Store, o orders, res *result) {
	err := begin(ctx, s, pairSize)
	if err == nil {
		stop := failpointtest.OwnMoment(o.Moments)
		err = train(ctx, s, o)
		res.Hits = stop()
	}
	res.end(err)
	fmt.Println(failedLine)
}

// train takes part until all steps are taken.
func train(ctx context.Context, s store.Store, o orders) error {
	m, err := elastic.Join(ctx, s, elastic.WithID(elastic.ID(o.Rank)), elastic.WithSilence(silence))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	g, err := group.New(ctx, s, cohort.Rank(o.Rank), pairSize, with(o.Transport, group.WithReconfigure(),
		group.WithConnectTimeout(formLimit), group.WithTimeout(opLimit), group.WithHeartbeat(heartbeat))...)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	step := 0
	for {
		round, err := m.Next(ctx, g.Handle())
		if err != nil {
			return err
		}
		next, err := g.Reconfigure(ctx, round.UUID, round.Handles)
		if err == nil {
			g = next
			err = steps(ctx, m, g, &step)
		}
		switch {
		case err == nil:
			return m.Done(ctx)
		case ctx.Err() != nil, cohort.CodeOf(err) == cohort.Unknown:
			return err
		}
	}
}

// errRound says that the round has ended.
var errRound = cohort.New("test", cohort.Aborted, "the round is over")

// steps takes steps in one group, all members the same.
func steps(ctx context.Context, m *elastic.Member, g *group.Group, step *int) error {
	all, err := group.AllGatherSlice(ctx, g, []int{*step})
	if err != nil {
		return err
	}
	for *step = slices.Max(all); *step < elasticSteps; *step++ {
		over, err := m.Over(ctx)
		if err != nil {
			return err
		}
		sum := []int{1, 0}
		if over {
			sum[1] = 1
		}
		if err := group.AllReduceSlice(ctx, g, sum, group.Sum); err != nil {
			return err
		}
		if sum[0] != g.Size() {
			return fmt.Errorf("%d of %d have taken a step", sum[0], g.Size())
		}
		if sum[1] > 0 {
			return errRound
		}
	}
	return nil
}

// runElastic is one run.
func runElastic(p *failpointtest.ProcessRun, transport group.Transport) []map[string]int {
	server := listen(p)
	if server == nil {
		return nil
	}
	defer func() { _ = server.Close() }()
	p.Does("elastic")
	ended := coordinate(server.Addr().String())
	pair := pairOf(p.Seed)
	ranks := make([]*process, pairSize)
	for rank := range ranks {
		o := orders{Rank: rank, Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Elastic: true}
		if i := slices.Index(pair, rank); i >= 0 {
			o.Moments = p.Victims[i].Moments
		}
		ranks[rank] = start(p, o)
	}
	var left, hit []int
	for rank, c := range ranks {
		if c.settle(p, rank) {
			left = append(left, rank)
		} else {
			p.Happened()
			hit = append(hit, rank)
		}
	}
	finished := false
	for _, rank := range left {
		ranks[rank].wait(p, rank)
		switch res := ranks[rank].result; {
		case res != nil && res.Err == "":
			finished = true
		case res != nil && cohort.Code(res.Code) == cohort.Closed: // the others had finished when it asked
		default:
			p.Errorf("rank %d, of those left %v: %+v", rank, left, res)
		}
	}
	if !finished && len(hit) == 0 {
		p.Errorf("no process has finished")
	}
	if err := ended(); err != nil {
		p.Errorf("the coordinator: %v", err)
	}
	for _, rank := range hit {
		wake(p, ranks[rank], rank, p.Victims[slices.Index(pair, rank)].Event)
	}
	hits := make([]map[string]int, len(pair))
	for i, rank := range pair {
		if res := ranks[rank].result; res != nil {
			hits[i] = res.Hits
		}
	}
	return hits
}

// coordinate starts a coordinator. ended returns when it has, which it has to soon, and what it says.
func coordinate(addr string) (ended func() error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*timeout)
	result := make(chan error, 1)
	go func() {
		s, err := tcpstore.Dial(ctx, addr)
		if err != nil {
			result <- err
			return
		}
		c, err := elastic.New(s, pairSize-2, pairSize, elastic.WithSilence(silence), elastic.WithLastCall(100*time.Millisecond))
		if err == nil {
			_, err = c.Reserve(ctx, pairSize)
		}
		if err == nil {
			err = c.Run(ctx)
		}
		result <- errors.Join(err, s.Close())
	}()
	return func() error {
		defer cancel()
		return <-result
	}
}
