// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcworld"
	"github.com/cohort-dist/cohort/store"
)

// TestStartAgainForgetsTheFirst: worker b dies while a static world starts, when worker a knows it and waits for x, which has died before.
// Others come in their places. The world starts again with them, and nobody knows b.
func TestStartAgainForgetsTheFirst(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	type joined struct {
		a   *Agent
		err error
	}
	join := func(ctx context.Context, name string, rank int) chan joined {
		done := make(chan joined, 1)
		go func() {
			a, err := Join(ctx, st, name, WithRank(dist.Rank(rank)), WithWorldSize(3), WithAddr("127.0.0.1:0"))
			done <- joined{a, err}
		}()
		return done
	}
	first := join(ctx, "a", 0)
	short, die := context.WithCancel(ctx)
	defer die()
	second := join(short, "b", 1)
	x := rpcworld.New(st, rpcworld.Config{Name: "x", Rank: 2, Size: 3, Round: -1, Cohort: true, Logger: slog.New(slog.DiscardHandler)})
	if err := x.ComeTogether(ctx); err != nil {
		t.Fatal(err)
	}
	round := store.Prefix(rpcworld.RoundPrefix(x.Round()), st)
	if err := round.Set(ctx, "names/2", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := round.Wait(ctx, "addrs/b"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // a knows it
	die()
	if b := <-second; !errors.Is(b.err, context.Canceled) {
		t.Fatal(b.err)
	}
	var agents []*Agent
	for _, c := range []chan joined{join(ctx, "b2", 1), join(ctx, "c", 2), first} {
		got := <-c
		if got.err != nil {
			t.Fatal(got.err)
		}
		defer func() { _ = got.a.Close() }()
		agents = append(agents, got.a)
	}
	for _, a := range agents {
		var names []string
		for _, w := range a.Workers() {
			names = append(names, w.Name)
		}
		if slices.Sort(names); !slices.Equal(names, []string{"a", "b2", "c"}) {
			t.Errorf("%s knows %v", a.Name(), names)
		}
	}
}
