// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// roles are what a process of this binary can be instead of running tests, by the variable of the environment that tells it more.
var roles = map[string]func(spec string) int{mortalEnv: mortal}

// TestMain runs the tests, or one rank when a test started this binary again.
func TestMain(m *testing.M) {
	for env, role := range roles {
		if spec := os.Getenv(env); spec != "" {
			os.Exit(role(spec))
		}
	}
	// The resolver keeps a channel that its first user makes: one made in a bubble of synctest cannot be used in another.
	_, _ = net.DefaultResolver.LookupHost(context.Background(), "localhost")
	testkit.RunWaitingTests()
	goleak.VerifyTestMain(m)
}

// transports are the ways to connect Go ranks.
var transports = []Transport{TCP, SharedMemory, Gloo}

// newWorld makes a world of Go ranks in this process.
func newWorld(tb testing.TB, size int, opts ...Option) []*Group {
	tb.Helper()
	s := store.NewMemory()
	tb.Cleanup(func() { _ = s.Close() })
	return newWorldOver(tb, s, size, opts...)
}

func newWorldOver(tb testing.TB, s store.Store, size int, opts ...Option) []*Group {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	groups := make([]*Group, size)
	must(tb, each(size, func(r int) (err error) {
		groups[r], err = New(ctx, s, cohort.Rank(r), size, opts...)
		return err
	}))
	tb.Cleanup(func() { closeAll(groups) })
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
var each = testkit.EachRank

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func from[T tensor.Element](values ...T) *tensor.Tensor {
	return tensor.Must(tensor.From(values, len(values)))
}

func values[T tensor.Element](tb testing.TB, x *tensor.Tensor) []T {
	tb.Helper()
	v, err := tensor.Copy[T](x)
	must(tb, err)
	return v
}

// ctxOf is a context that ends long after a test should have.
func ctxOf(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	tb.Cleanup(cancel)
	return ctx
}

// runs reports whether the operation has begun.
func (w *Work) runs() bool { return w.Duration() > 0 }
