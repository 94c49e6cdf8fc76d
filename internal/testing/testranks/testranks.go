// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package testranks lets a test be several ranks of a group at once.
package testranks

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Each runs f for every rank at once and returns the errors of all, each with its rank.
func Each(size int, f func(rank int) error) error {
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	return Some(all, f)
}

// Some is [Each] of some ranks.
func Some(ranks []int, f func(rank int) error) error {
	if len(ranks) == 0 {
		return nil
	}
	errs := make([]error, slices.Max(ranks)+1)
	var wg sync.WaitGroup
	for _, r := range ranks {
		wg.Go(func() {
			if err := f(r); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
