// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// meddled is a mesh on which something happens just before an op is withdrawn.
type meddled struct {
	transport.Mesh
	before func(*transport.Op)
}

func (m meddled) Cancel(op *transport.Op) bool {
	m.before(op)
	return m.Mesh.Cancel(op)
}

// TestLateMessageIsNotTakenForTheNext: a message arrives when its time is over, and its Work is used for the next message before the first
// is withdrawn. The next one has nothing to do with that.
func TestLateMessageIsNotTakenForTheNext(t *testing.T) {
	t.Parallel()
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	mesh, first, next := groups[0].mesh, from(int64(0)), from(int64(0))
	var work *Work
	posted, met, reused := make(chan struct{}), make(chan error, 1), false
	groups[0].mesh = meddled{mesh, func(op *transport.Op) {
		<-posted
		sent := groups[1].Send(ctx, from(int64(7)), 0, 0)
		met <- errors.Join(sent.Wait(ctx), mesh.Wait(ctx, op))
		if reused = work.Completed(); reused { // its owner has it back, and goes on
			groups[0].Recv(ctx, next, 1, 1, Reuse(work))
		}
	}}
	work = groups[0].Recv(ctx, first, 1, 0, WithTimeout(time.Millisecond))
	close(posted)
	must(t, <-met)
	if err := work.Wait(ctx); err != nil {
		t.Errorf("used again: %v; %v", reused, err)
	}
	if !reused {
		work = groups[0].Recv(ctx, next, 1, 1, Reuse(work))
	}
	must(t, groups[1].Send(ctx, from(int64(8)), 0, 1).Wait(ctx))
	must(t, work.Wait(ctx))
}

// hurried is a mesh on which something happens just before an op is posted.
type hurried struct {
	transport.Mesh
	before func()
}

func (m hurried) Recv(op *transport.Op) {
	m.before()
	m.Mesh.Recv(op)
}

func (m hurried) Send(op *transport.Op) {
	m.before()
	m.Mesh.Send(op)
}

// TestLateBeforeItIsPosted: the time of a message is over before the mesh has it. It ends alone, and nothing of it is left.
func TestLateBeforeItIsPosted(t *testing.T) {
	t.Parallel()
	for _, kind := range transports {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			groups := newWorld(t, 2, WithTransport(kind))
			ctx := ctxOf(t)
			groups[0].mesh = hurried{groups[0].mesh, groups[0].expire}
			late := groups[0].Recv(ctx, from(int64(0)), 1, 3, WithTimeout(time.Nanosecond))
			err := late.Wait(ctx)
			e, ok := errors.AsType[*cohort.Error](err)
			if !ok || e.Code != cohort.DeadlineExceeded || e.Rank != 1 || late.Err() == nil {
				t.Errorf("%v", err)
			}
			groups[0].mu.Lock()
			left := len(groups[0].mu.sched.Messages())
			groups[0].mu.Unlock()
			if left != 0 {
				t.Errorf("%d messages are left", left)
			}
			if kind == Gloo {
				return // the peer was notified of the receive: withdrawing it takes the connection
			}
			// A small send may have left: it is over, one way or the other.
			sent := groups[0].Send(ctx, from(int64(5)), 1, 4, WithTimeout(time.Nanosecond))
			if sendErr := sent.Wait(ctx); sendErr != nil && !errors.Is(sendErr, cohort.DeadlineExceeded) {
				t.Error(sendErr)
			}
			got := from(int64(0))
			must(t, groups[1].Send(ctx, from(int64(9)), 0, 3).Wait(ctx))
			must(t, groups[0].Recv(ctx, got, 1, 3).Wait(ctx))
			if v := values[int64](t, got); v[0] != 9 {
				t.Errorf("got %v", v)
			}
			must(t, each(2, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) }))
		})
	}
}

// TestClosedGroupLeavesTheStoreAlone: what a group finds out after Close is not recorded. The keys of the group are removed by then.
func TestClosedGroupLeavesTheStoreAlone(t *testing.T) {
	t.Parallel()
	groups := newWorld(t, 2, WithTransport(TCP))
	g := groups[0]
	must(t, g.Close())
	lost := &cohort.Error{Op: "test", Code: cohort.PeerLost, Rank: 1, Detail: "it is gone"}
	g.fail(lost)
	_ = g.formed.Blame(lost)
	ctx, cancel := context.WithTimeout(ctxOf(t), 5*time.Second)
	defer cancel()
	if there, err := g.lineage.store.Check(ctx, g.formed.Place.EndKey()); there || err != nil {
		t.Errorf("recorded: %v, %v", there, err)
	}
}

// TestWithdrawnMessageIsNoReason: a message that ended alone, because it was aborted or took too long, is not why the group ends later.
func TestWithdrawnMessageIsNoReason(t *testing.T) {
	t.Parallel()
	ends := map[string]func(context.Context, *Group) *Work{
		"aborted": func(ctx context.Context, g *Group) *Work {
			w := g.Recv(ctx, from(int64(0)), 1, 0)
			w.Abort()
			return w
		},
		"late": func(ctx context.Context, g *Group) *Work {
			return g.Recv(ctx, from(int64(0)), 1, 0, WithTimeout(time.Millisecond))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			groups := newWorld(t, 3, WithTransport(TCP))
			ctx := ctxOf(t)
			if err := end(ctx, groups[0]).Wait(ctx); err == nil {
				t.Error("the message did not end")
			}
			vanish(t, groups[2])
			must(t, each(2, func(r int) error { return names2(groups[r].AllReduce(ctx, from(int64(1)), Sum).Wait(ctx)) }))
		})
	}
}
