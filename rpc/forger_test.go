// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// forge lets a worker send control messages, and waits until their receivers have them.
func forge(t *testing.T, a *Agent, to rrefcore.Worker, all ...rrefcore.Message) {
	t.Helper()
	for _, m := range all {
		a.refs.Forge(to, m)
	}
	for end := time.Now().Add(10 * time.Second); a.refs.Counts().PendingFutures > 0; {
		if time.Now().After(end) {
			t.Fatalf("%s: forged messages are not acknowledged: %+v", a.Name(), a.refs.Counts())
		}
		time.Sleep(time.Millisecond)
	}
}

// A worker of the world that was given no reference, but knows all ids, asks for one, fetches, deletes, cancels, confirms, hands
// over, creates and withdraws. It gets nothing, and no worker loses anything.
func TestMemberForgesReferences(t *testing.T) {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	reg := NewRegistry().
		MustHandle("t.secret", func() string { return "secret" }).
		MustHandle("t.other", func() string { return "forged" }).
		MustHandle("t.tell", func(ctx context.Context, r *Ref[string]) (string, error) { return r.LocalValue(ctx) }).
		MustHandle("t.fetch", func(ctx context.Context, r *Ref[string]) (string, error) { return r.Fetch(ctx) }).
		MustHandle("t.slow", func(ctx context.Context) (string, error) {
			begun <- struct{}{}
			select {
			case <-release:
				return "slow", nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		})
	agents := world(t, 3, true, func(int) *Registry { return reg })
	owner, creator, thief := agents[0], agents[1], agents[2]
	ctx := testContext(t)
	ready, err := Remote[string](ctx, creator, "w0", "t.secret")
	if err != nil {
		t.Fatal(err)
	}
	slow, err := Remote[string](ctx, creator, "w0", "t.slow")
	if err != nil {
		t.Fatal(err)
	}
	own, err := NewRef(owner, "own")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Call[string](ctx, thief, "w0", "t.other"); err != nil { // a link
		t.Fatal(err)
	}
	for _, ref := range []*Ref[string]{ready, slow} {
		if err := ref.Confirmed(ctx); err != nil {
			t.Fatal(err)
		}
	}
	<-begun
	stolen := func(id rrefcore.ID) *Ref[string] { // a reference as if it had been given
		h := &rpcref.Handle{Wire: rrefcore.Wire{ID: id, Owner: 0, OwnerEpoch: rrefcore.Epoch(owner.epoch)}, Owner: "w0", Settled: true}
		return &Ref[string]{a: thief, c: thief.refs.HoldHandle(h, false)}
	}
	targets := []rrefcore.Wire{ready.c.Handle.Wire, slow.c.Handle.Wire, {ID: own.c.Object.ID, Fork: own.c.Object.ID}}
	next := ready.c.Handle.Wire.ID // what the creator will make
	next.N += 100
	targets = append(targets, rrefcore.Wire{ID: next, Fork: rrefcore.ID{On: next.On, N: next.N + 1, Epoch: next.Epoch}})
	mine := rrefcore.ID{On: 2, N: 1000, Epoch: rrefcore.Epoch(thief.epoch)}
	var given []rrefcore.Message
	for _, w := range targets {
		said := rrefcore.Message{ID: w.ID, Fork: w.Fork, Root: w.Fork, OwnerEpoch: rrefcore.Epoch(owner.epoch)}
		for _, key := range []rrefcore.Key{{}, {1, 2, 3}} {
			for _, fork := range []rrefcore.ID{
				w.Fork, mine,
				{On: 0, N: 1000, Epoch: rrefcore.Epoch(owner.epoch)},
				{On: 1, N: 1000, Epoch: rrefcore.Epoch(creator.epoch)},
			} {
				m := said
				m.Kind, m.Fork, m.Key = rrefcore.ForkRequest, fork, key
				forge(t, thief, 0, m)
				m.Kind = rrefcore.Handoff
				forge(t, thief, 0, m)
				given = append(given, m)
			}
		}
		for _, kind := range []rrefcore.Kind{rrefcore.Delete, rrefcore.Cancel, rrefcore.Announce, rrefcore.Withdraw} {
			m := said
			m.Kind = kind
			forge(t, thief, 0, m)
		}
		for _, kind := range []rrefcore.Kind{
			rrefcore.ForkReply, rrefcore.Created, rrefcore.ChildAccept, rrefcore.Withdraw,
			rrefcore.Delete,
		} {
			m := said
			m.Kind, m.Code = kind, rrefcore.Gone
			forge(t, thief, 1, m)
		}
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		if v, err := stolen(w.ID).Fetch(short); !errors.Is(err, ErrGone) {
			t.Errorf("%v: a fetch got %q, %v", w.ID, v, err)
		}
		cancel()
		h := &rpcref.Handle{Wire: w, Owner: "w0"}
		o := &rpcclient.Outgoing{By: thief.caller, Op: "remote", Func: "t.other", Peer: thief.net.PeerByID(0)}
		thief.creates(o, h, parseTarget(o.Func), o.Func, nil)
		if _, err := thief.caller.Exchange(ctx, o); err == nil {
			t.Errorf("%v: created by another worker", w.ID)
		}
	}
	for _, info := range owner.refs.State().Objects {
		for _, f := range info.Forks {
			if f.Holder == 2 {
				t.Errorf("the thief holds %v of %v", f.Fork, info.ID)
			}
		}
	}
	close(release)
	for _, want := range []struct {
		ref   *Ref[string]
		value string
	}{{ready, "secret"}, {slow, "slow"}, {own, "own"}} {
		if v, err := want.ref.Fetch(ctx); err != nil || v != want.value {
			t.Errorf("afterwards: %q, %v, want %q", v, err, want.value)
		}
		if v, err := Call[string](ctx, want.ref.a, "w0", "t.tell", want.ref); err != nil || v != want.value {
			t.Errorf("given to its owner: %q, %v", v, err)
		}
		if v, err := Call[string](ctx, want.ref.a, "w2", "t.fetch", want.ref); err != nil || v != want.value {
			t.Errorf("given to the worker that had tried to take it: %q, %v", v, err)
		}
		_ = want.ref.Close()
	}
	for i := range given { // what it said before it was given the references counts now: it takes it back
		given[i].Kind = rrefcore.Withdraw
	}
	forge(t, thief, 0, given...)
	quiet(t, agents)
	shutdown(t, agents)
}

// A reference goes through the hands of all workers before its owner may know of it: a worker creates an object and returns the
// reference at once, its caller passes it on at once, to another worker and back to the owner. Each of them can use it.
func TestPassOnAtOnce(t *testing.T) {
	reg := NewRegistry()
	reg.MustHandle("t.five", func() int { return 5 }).
		MustHandle("t.make", func(ctx context.Context) (*Ref[int], error) { return Remote[int](ctx, AgentFrom(ctx), "w0", "t.five") }).
		MustHandle("t.relay", func(ctx context.Context) (*Ref[int], error) {
			return Call[*Ref[int]](ctx, AgentFrom(ctx), "w1", "t.make")
		}).
		MustHandle("t.local", func(ctx context.Context, r *Ref[int]) (int, error) {
			defer func() { _ = r.Close() }()
			return r.LocalValue(ctx)
		}).
		MustHandle("t.fetch", func(ctx context.Context, r *Ref[int]) (int, error) {
			defer func() { _ = r.Close() }()
			return r.Fetch(ctx)
		})
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 4, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		for i := range 50 {
			ref, err := Call[*Ref[int]](ctx, agents[2+i%2], "w1", "t.make")
			if i%5 == 4 {
				_ = ref.Close()
				ref, err = Call[*Ref[int]](ctx, agents[3], "w2", "t.relay")
			}
			if err != nil {
				t.Fatal(err)
			}
			at := ref.Agent()
			back := Async[int](ctx, at, "w0", "t.local", ref)
			on := Async[int](ctx, at, "w1", "t.fetch", ref)
			if n, err := ref.Fetch(ctx); err != nil || n != 5 {
				t.Fatalf("%d: here: %d, %v", i, n, err)
			}
			_ = ref.Close()
			for j, f := range []interface {
				Await(context.Context) (int, error)
			}{back, on} {
				if n, err := f.Await(ctx); err != nil || n != 5 {
					t.Fatalf("%d: future %d: %d, %v", i, j, n, err)
				}
			}
		}
		quiet(t, agents)
		shutdown(t, agents)
	})
}
