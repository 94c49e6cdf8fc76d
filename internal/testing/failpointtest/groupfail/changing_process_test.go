// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestChangingPairs kills or stops one or two ranks' processes while the ranks make a group from those that they have, or lets them be
// late. Those that are left must name one to which something happened, all the same, in time, and can go on without it.
func TestChangingPairs(t *testing.T) {
	failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
		Name: "all", Share: 20, Events: []string{failpointtest.KillEvent, failpointtest.StopEvent}, Victims: 2,
		Points: append([]string{"tcpstore."}, changePoints...),
		Run: func(p *failpointtest.ProcessRun) []map[string]int {
			kinds := uint64(len(changes))
			return runPair(p, transportOf(p.Seed/kinds), changes[p.Seed%kinds])
		},
	})
}

// transportOf returns each transport in turn.
func transportOf(n uint64) group.Transport { return transports[n%uint64(len(transports))] }

var changes = []change{reconfigured, merged, split}

// changedRank is a rank that makes a group from the one that it has while the moments of one or two ranks come.
type changedRank struct {
	o       orders
	own     *tcpstore.Client
	base    *group.Group // what it has
	handles []string     // of the next one
}

// before gives the rank the group that the next one is made from.
func (c *changedRank) before(ctx context.Context) (err error) {
	opts := with(c.o.Transport, group.WithTimeout(opLimit), group.WithHeartbeat(heartbeat))
	if c.o.Change == reconfigured {
		opts = append(opts, group.WithReconfigure(), group.WithConnectTimeout(formLimit))
	}
	if c.base, err = group.New(ctx, c.own, cohort.Rank(c.o.Rank), pairSize, opts...); err != nil || c.o.Change != reconfigured {
		return err
	}
	if err = c.exchange(ctx, "first", []int{0, 1, 2, 3}); err != nil {
		return err
	}
	if err = c.reconfigure(ctx, 1); err != nil {
		return err
	}
	return c.exchange(ctx, "second", turned) // before anything happens
}

// turned is the order of the ranks in the group that is made while things happen.
var turned = []int{3, 0, 1, 2}

// exchange tells the ranks of the next group their handles.
func (c *changedRank) exchange(ctx context.Context, name string, members []int) error {
	key := func(rank int) string { return fmt.Sprintf("test/handle/%s/%d", name, rank) }
	if err := c.own.Set(ctx, key(c.o.Rank), []byte(c.base.Handle())); err != nil {
		return err
	}
	c.handles = make([]string, len(members))
	for i, rank := range members {
		handle, err := c.own.Get(ctx, key(rank))
		if err != nil {
			return err
		}
		c.handles[i] = string(handle)
	}
	return nil
}

// reconfigure makes the next group.
func (c *changedRank) reconfigure(ctx context.Context, uuid int64) error {
	g, err := c.base.Reconfigure(ctx, uuid, c.handles)
	if err == nil {
		c.base = g
	}
	return err
}

// next makes the next group of all ranks. number is told the rank in it.
func (c *changedRank) next(ctx context.Context, number func(int)) (*group.Group, error) {
	switch c.o.Change {
	case split:
		return c.base.Split(ctx, [][]cohort.Rank{{0, 1, 2, 3}}, group.WithConnectTimeout(formLimit))
	case merged:
		return c.base.Merge(ctx, store.Prefix("merge", numbered{c.own, number}), pairSize, group.WithConnectTimeout(formLimit))
	case reconfigured:
	}
	err := c.reconfigure(ctx, 2)
	return c.base, err
}

// numbered is a store that tells the number that a rank takes in a merge.
type numbered struct {
	*tcpstore.Client
	number func(int)
}

func (s numbered) Add(ctx context.Context, key string, delta int64) (int64, error) {
	n, err := s.Client.Add(ctx, key, delta)
	if err == nil && strings.HasSuffix(key, gloo.MergeRankKey) {
		s.number(int(n) - 1)
	}
	return n, err
}

// changingRank is the program of such a rank.
func changingRank(ctx context.Context, s *tcpstore.Client, o orders, res *result) error {
	c := &changedRank{o: o, own: s}
	if err := c.before(ctx); err != nil {
		return err
	}
	defer func() { _ = c.base.Close() }()
	if err := begin(ctx, s, pairSize); err != nil {
		return err
	}
	stop := failpointtest.OwnMoment(o.Moments)
	if res.Number = o.Rank; o.Change == reconfigured {
		res.Number = slices.Index(turned, o.Rank)
	}
	g, err := c.next(ctx, func(n int) { res.Number = n })
	res.Hits = stop()
	if err == nil {
		err = run(ctx, g, operations[0], 10)
		if o.Change != reconfigured { // else it is what the next one is made from
			_ = g.Close()
		}
	}
	res.end(err)
	fmt.Println(failedLine)
	if !o.Regroup {
		return nil
	}
	if o.Change != reconfigured {
		regroupLeft(ctx, s, o, res)
		return nil
	}
	left, err := whoIsLeft(ctx, s)
	if err == nil && slices.Contains(left, o.Rank) { // else it was stopped, and came back
		if err = c.exchange(ctx, "third", left); err == nil {
			err = c.reconfigure(ctx, 3)
		}
		if err == nil {
			err = run(ctx, c.base, operations[0], 10)
		}
	}
	if err != nil {
		res.Again = err.Error()
	}
	return nil
}
