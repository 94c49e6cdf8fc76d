// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Allreducepath combines a slice of 256 KiB over two ranks in this process, over TCP, for a count of the functions that this enters.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/pathcount"
	"github.com/cohort-dist/cohort/store"
)

const ranks = 2

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shared := store.NewMemory()
	var groups [ranks]*group.Group
	err := onEach(func(rank int) (err error) {
		groups[rank], err = group.New(ctx, shared, cohort.Rank(rank), ranks, group.WithTransport(group.TCP))
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = onEach(func(rank int) error { return groups[rank].Close() }) }()
	allReduce := func() error {
		return onEach(func(rank int) error {
			return group.AllReduceSlice(ctx, groups[rank], make([]float32, 64<<10), group.Sum)
		})
	}
	if err := allReduce(); err != nil {
		return err
	}
	pathcount.Operation(allReduce)
	return nil
}

// onEach calls f for all ranks at the same time.
func onEach(f func(rank int) error) error {
	var errs [ranks]error
	var tasks sync.WaitGroup
	for rank := range ranks {
		tasks.Go(func() { errs[rank] = f(rank) })
	}
	tasks.Wait()
	return errors.Join(errs[:]...)
}
