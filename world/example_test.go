// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/world"
)

// Two ranks meet over a file, as two processes on one machine or on a shared file system would. PyTorch ranks can join
// them with the same URL.
func ExampleJoin() {
	dir, err := os.MkdirTemp("", "cohort")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	url := "file://" + filepath.Join(dir, "job") + "?world_size=2"

	ctx := context.Background()
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			w, err := world.Join(ctx, fmt.Sprintf("%s&rank=%d", url, rank))
			if err != nil {
				panic(err)
			}
			defer func() { _ = w.Close() }()
			if w.Rank() == 0 {
				err = w.Store().Set(ctx, "greeting", []byte("hello from rank 0"))
			} else {
				var greeting []byte
				greeting, err = w.Store().Get(ctx, "greeting") // waits until rank 0 has set it
				fmt.Printf("rank %d of %d read: %s\n", w.Rank(), w.Size(), greeting)
			}
			if err != nil {
				panic(err)
			}
			if err := w.Shutdown(ctx); err != nil {
				panic(err)
			}
		})
	}
	ranks.Wait()
	// Output: rank 1 of 2 read: hello from rank 0
}

// A custom scheme: here all ranks live in one process and share a store in memory, which is handy in tests.
func ExampleWithRendezvous() {
	memory := store.NewMemory()
	registry := rendezvous.NewRegistry()
	if err := registry.Register("memory", rendezvous.Shared(memory)); err != nil {
		panic(err)
	}
	ctx := context.Background()
	w, err := world.Join(ctx, "memory://?rank=0&world_size=1", world.WithRendezvous(rendezvous.WithRegistry(registry)))
	if err != nil {
		panic(err)
	}
	defer func() { _ = w.Close() }()
	sum, err := w.Store().Add(ctx, "steps", 3)
	fmt.Println(sum, err)
	// Output: 3 <nil>
}

// All ranks add up their numbers. With PyTorch among them, whose ranks call init_process_group("gloo") and all_reduce, the Go
// code is the same.
func ExampleWorld_Group() {
	dir, err := os.MkdirTemp("", "cohort")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	url := "file://" + filepath.Join(dir, "job") + "?world_size=3"

	ctx := context.Background()
	var ranks sync.WaitGroup
	for rank := range 3 {
		ranks.Go(func() {
			w, err := world.Join(ctx, fmt.Sprintf("%s&rank=%d", url, rank))
			if err != nil {
				panic(err)
			}
			defer func() { _ = w.Close() }()
			g, err := w.Group(ctx)
			if err != nil {
				panic(err)
			}
			numbers := []float32{1, float32(rank)}
			if err := group.AllReduceSlice(ctx, g, numbers, group.Sum); err != nil {
				panic(err)
			}
			if rank == 0 {
				fmt.Println(numbers)
			}
			if err := w.Shutdown(ctx); err != nil {
				panic(err)
			}
		})
	}
	ranks.Wait()
	// Output: [3 3]
}
