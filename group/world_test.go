// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// transports are the ways to connect Go ranks.
var transports = []Transport{TCP, SharedMemory, Gloo}

// newWorld makes a world of Go ranks in this process.
func newWorld(t testing.TB, size int, opts ...Option) []*Group {
	t.Helper()
	s := store.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	return newWorldOver(t, s, size, opts...)
}

func newWorldOver(t testing.TB, s store.Store, size int, opts ...Option) []*Group {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	groups := make([]*Group, size)
	must(t, each(size, func(r int) (err error) {
		groups[r], err = New(ctx, s, r, size, opts...)
		return err
	}))
	t.Cleanup(func() { closeAll(groups) })
	return groups
}

func closeAll(groups []*Group) {
	_ = each(len(groups), func(r int) error {
		if groups[r] != nil {
			return groups[r].Close()
		}
		return nil
	})
}

// each runs f for every rank at once.
func each(size int, f func(rank int) error) error {
	errs := make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			if err := f(r); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func from[T tensor.Element](values ...T) *tensor.Tensor {
	return tensor.Must(tensor.From(values, len(values)))
}

func values[T tensor.Element](t testing.TB, x *tensor.Tensor) []T {
	t.Helper()
	v, err := tensor.Copy[T](x)
	must(t, err)
	return v
}

// ctxOf is a context that ends long after a test should have.
func ctxOf(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
