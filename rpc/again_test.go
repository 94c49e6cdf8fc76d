// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/store"
)

// reading is a store that tells when a key is about to be read.
type reading struct {
	store.Store
	key  string
	read func()
}

func (r *reading) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasSuffix(key, r.key) {
		r.read()
	}
	return r.Store.Get(ctx, key)
}

// TestStartAgainForgetsTheFirst: worker b dies while a static world starts, when worker a knows it and waits for x, which has died before.
// Others replace them. The world starts again with them, and none of them knows b.
func TestStartAgainForgetsTheFirst(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	type joined struct {
		a   *Agent
		err error
	}
	join := func(ctx context.Context, st store.Store, name string, rank int) chan joined {
		done := make(chan joined, 1)
		go func() {
			a, err := Join(ctx, st, name, WithRank(cohort.Rank(rank)), WithWorldSize(3), WithAddr("127.0.0.1:0"))
			done <- joined{a, err}
		}()
		return done
	}
	seen := make(chan struct{}) // a asks for the next worker
	first := join(ctx, &reading{Store: st, key: "addrs/x", read: sync.OnceFunc(func() { close(seen) })}, "a", 0)
	short, die := context.WithCancel(ctx)
	defer die()
	second := join(short, st, "b", 1)
	x := rpcworld.New(st, rpcworld.Config{Name: "x", Rank: 2, Size: 3, Round: -1, Cohort: true, Logger: slog.New(slog.DiscardHandler)})
	if err := x.ComeTogether(ctx); err != nil {
		t.Fatal(err)
	}
	round := store.Prefix(rpcworld.RoundPrefix(x.Round()), st)
	if err := round.Set(ctx, "names/2", []byte("x")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
	case <-ctx.Done():
		t.Fatal("a has not seen b")
	}
	die()
	if b := <-second; !errors.Is(b.err, context.Canceled) {
		t.Fatal(b.err)
	}
	var agents []*Agent
	for _, c := range []chan joined{join(ctx, st, "b2", 1), join(ctx, st, "c", 2), first} {
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
