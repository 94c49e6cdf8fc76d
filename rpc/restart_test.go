// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
)

// reading is a store that reports when a key is about to be read.
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

// dynamicWorld returns what joins a world.
func dynamicWorld(ctx context.Context, t *testing.T) func(name string, opts ...Option) *Agent {
	t.Helper()
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	reg := NewRegistry().MustHandle("t.seven", func() int { return 7 })
	return func(name string, opts ...Option) *Agent {
		t.Helper()
		defaults := []Option{
			WithAddr("127.0.0.1:0"), WithHandlers(reg), WithLogger(testLogger()),
			WithLease(100*time.Millisecond, 10*time.Second, time.Millisecond),
		}
		a, err := Join(ctx, st, name, append(defaults, opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
}

// TestRankIsTakenAfterACrash: one worker after the other of a dynamic world ends without a word, and the next comes with its name and
// rank, in either protocol, perhaps at the same address. The worker that stays must not take it for the one before, which it may know
// to be dead.
func TestRankIsTakenAfterACrash(t *testing.T) {
	t.Parallel()
	t.Run("noticed", func(t *testing.T) { takeAfterCrash(t, true, "127.0.0.1:0") })
	t.Run("perhaps not", func(t *testing.T) { takeAfterCrash(t, false, "127.0.0.1:0") })
	t.Run("noticed, same address", func(t *testing.T) { takeAfterCrash(t, true, "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t))) })
	t.Run("perhaps not, same address", func(t *testing.T) { takeAfterCrash(t, false, "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t))) })
}

func takeAfterCrash(t *testing.T, noticed bool, addr string) {
	t.Helper()
	t.Parallel()
	ctx := testContext(t)
	join := dynamicWorld(ctx, t)
	create := func(from *Agent, to string) error {
		ref, err := Remote[int](ctx, from, to, "t.seven")
		if err == nil {
			_, err = ref.Fetch(ctx)
			_ = ref.Close()
		}
		return err
	}
	stays := join("stays", WithRank(0))
	torch, both := WithTransports(TransportUV), WithTransports(TransportCohort, TransportUV)
	for life, transports := range []Option{torch, torch, both, both, torch} {
		w := join("w1", WithRank(1), WithAddr(addr), transports)
		for range 2 { // the second after both have called
			if err := create(w, "stays"); err != nil {
				t.Errorf("life %d creates: %v", life, err)
			}
			if err := create(stays, "w1"); err != nil {
				t.Errorf("creation at life %d: %v", life, err)
			}
		}
		_ = w.Close()
		for noticed && !errors.Is(create(stays, "w1"), ErrPeerDead) {
			if ctx.Err() != nil {
				t.Fatalf("the end of life %d is not noticed", life)
			}
			time.Sleep(time.Millisecond)
		}
		if life%2 == 0 { // else the next one finds the dead one itself
			join(fmt.Sprintf("c%d", life)) // finds the dead one, and takes it off the list
		}
	}
}

// TestNameOfALiveWorkerIsTaken: a worker whose name another one wants is asked whether it lives, and keeps its name, connections and all.
func TestNameOfALiveWorkerIsTaken(t *testing.T) {
	t.Parallel()
	for _, transports := range []Option{WithTransports(TransportUV), WithTransports(TransportCohort, TransportUV)} {
		ctx := testContext(t)
		st := store.NewMemory()
		defer func() { _ = st.Close() }()
		reg := NewRegistry().MustHandle("t.seven", func() int { return 7 })
		opts := []Option{WithAddr("127.0.0.1:0"), WithHandlers(reg), WithLogger(testLogger()), transports}
		agents := map[string]*Agent{}
		for _, name := range []string{"a", "b"} {
			agent, err := Join(ctx, st, name, opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = agent.Close() }()
			agents[name] = agent
		}
		for range 3 {
			double, err := Join(ctx, st, "b", opts...)
			if cohort.CodeOf(err) != cohort.AlreadyExists || !strings.Contains(err.Error(), agents["b"].Addr()) {
				t.Fatalf("%v, %v; want an error that names the address of the worker", double, err)
			}
		}
		for from, to := range map[string]string{"a": "b", "b": "a"} {
			if seven, err := Call[int](ctx, agents[from], to, "t.seven"); seven != 7 || err != nil {
				t.Errorf("%s calls %s: %v, %v", from, to, seven, err)
			}
		}
	}
}

// TestReferenceOvertakesCreation: a PyTorch worker comes in the place of another one, creates an object, and passes the reference on. What
// another worker says of it arrives before the call that creates it.
func TestReferenceOvertakesCreation(t *testing.T) {
	t.Parallel()
	id, root := rrefcore.ID{On: 1, N: 100}, rrefcore.ID{On: 1, N: 101}
	begin := func(t *testing.T) (stays *Agent, w2 *rpcsession.Peer, create func()) {
		t.Helper()
		ctx := testContext(t)
		join := dynamicWorld(ctx, t)
		torch := WithTransports(TransportUV)
		stays = join("stays", WithRank(0))
		former := join("w1", WithRank(1), torch)
		join("w2", WithRank(2), torch)
		ref, err := Remote[int](ctx, former, "stays", "t.seven")
		if err == nil {
			_, err = ref.Fetch(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = ref.Close()
		if err := former.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		join("w1", WithRank(1), torch)
		return stays, stays.net.PeerByID(2), func() {
			t.Helper()
			pair := rpcwire.RRefPair{RRef: rpcref.Global(id), Fork: rpcref.Global(root)}
			o, err := stays.refs.CallArrived(stays.net.PeerByID(1), 0, pair, "t.seven", func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			stays.refs.Created(o, 7, nil, false)
		}
	}
	t.Run("at its owner", func(t *testing.T) {
		t.Parallel()
		stays, w2, create := begin(t)
		got, err := stays.refs.Decoding(w2, nil, nil).Arrive(
			rpcwire.RRefFork{RRef: rpcref.Global(id), Fork: rpcwire.GlobalID{On: 2, Local: 100}, Parent: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer closeRef(got)
		create()
	})
	t.Run("elsewhere", func(t *testing.T) {
		t.Parallel()
		stays, w2, create := begin(t)
		stays.refs.Controlled(w2, rrefcore.Message{Kind: rrefcore.ForkRequest, ID: id, Fork: rrefcore.ID{On: 1, N: 102}})
		create()
		stays.refs.Controlled(stays.net.PeerByID(1), rrefcore.Message{Kind: rrefcore.Delete, ID: id, Fork: root})
		if _, err := stays.refs.FetchArrived(2, id); err != nil {
			t.Error(err)
		}
	})
}

// TestIDsBeginAnew: the first word of a PyTorch worker that comes in the place of another one is a creation, with the id of an object that
// the former has left. The new object is not freed with the old one.
func TestIDsBeginAnew(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	join := dynamicWorld(ctx, t)
	torch := WithTransports(TransportUV)
	stays := join("stays", WithRank(0), WithLease(100*time.Millisecond, 10*time.Second, time.Hour))
	id := rrefcore.ID{On: 1, N: 0}
	pair := rpcwire.RRefPair{RRef: rpcref.Global(id), Fork: rpcref.Global(rrefcore.ID{On: 1, N: 1})}
	for _, value := range []int{7, 8} {
		w := join("w1", WithRank(1), torch)
		o, err := stays.refs.CallArrived(stays.net.PeerByID(1), 0, pair, "t.seven", func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		stays.refs.Created(o, value, nil, false)
		found, err := stays.refs.FetchArrived(1, id)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := found.Peek(); v != value || err != nil {
			t.Errorf("the object has %v, %v; want %d", v, err, value)
		}
		if err := w.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
