// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
)

// Three processes, here goroutines, form a group of two; the third is a spare and takes over when one leaves.
func Example() {
	ctx := context.Background()
	s := store.NewMemory() // in a real job a TCP store
	defer func() { _ = s.Close() }()

	var all sync.WaitGroup
	coordinator, _ := elastic.New(s, 2, 2)
	all.Go(func() { fmt.Println("coordinator:", coordinator.Run(ctx)) })

	process := func() error {
		m, err := elastic.Join(ctx, s)
		if err != nil {
			return err
		}
		defer func() { _ = m.Close() }()
		for {
			g, err := m.Group(ctx, s) // a spare waits here
			if err != nil {
				return err // the job has ended
			}
			// Take over the state of the member that is furthest, then train. When an operation fails, or m.Over says so, ask again.
			if err = g.Barrier(ctx).Wait(ctx); err != nil {
				continue
			}
			return m.Done(ctx)
		}
	}
	for range 3 {
		all.Go(func() { _ = process() })
	}
	all.Wait()
	// Output: coordinator: <nil>
}

// A program that makes its groups itself, from what the rounds say.
func ExampleMember_Next() {
	ctx := context.Background()
	s := store.NewMemory() // in a real job a TCP store
	defer func() { _ = s.Close() }()

	var all sync.WaitGroup
	coordinator, _ := elastic.New(s, 2, 2)
	all.Go(func() { fmt.Println("coordinator:", coordinator.Run(ctx)) })

	process := func() error {
		m, err := elastic.Join(ctx, s)
		if err != nil {
			return err
		}
		defer func() { _ = m.Close() }()
		g, err := group.New(ctx, s, cohort.Rank(m.ID()), int(m.ID())+1, group.WithReconfigure())
		if err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		for {
			round, err := m.Next(ctx, g.Handle()) // a spare waits here
			if err != nil {
				return err // the job has ended
			}
			next, err := g.Reconfigure(ctx, round.UUID, round.Handles)
			if err != nil {
				continue // a member did not join: ask again
			}
			g = next
			// Take over the state of the member that is furthest, then train. When an operation fails, or m.Over says so, ask again.
			if err = g.Barrier(ctx).Wait(ctx); err != nil {
				continue
			}
			return m.Done(ctx)
		}
	}
	for range 3 {
		all.Go(func() { _ = process() })
	}
	all.Wait()
	// Output: coordinator: <nil>
}

// A launcher on another node reserves IDs for the members that it starts, and reports when one of them has died.
func ExampleStarter() {
	ctx := context.Background()
	s := store.NewMemory() // in a real job a TCP store, that of the coordinator
	defer func() { _ = s.Close() }()

	starter, _ := elastic.NewStarter(s)
	first, _ := starter.Reserve(ctx, 2)
	for i := range elastic.ID(2) {
		fmt.Printf("COHORT_MEMBER=%d\n", first+i) // they join with WithEnvID
	}
	_ = starter.Lost(ctx, first+1)
	// Output:
	// COHORT_MEMBER=0
	// COHORT_MEMBER=1
}
