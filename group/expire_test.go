// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
)

// meddled is a mesh on which something happens just before an op is withdrawn.
type meddled struct {
	link.Mesh
	before func(*link.Op)
}

func (m meddled) Cancel(op *link.Op) bool {
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
	groups[0].mesh = meddled{mesh, func(op *link.Op) {
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

// TestClosedGroupLeavesTheStoreAlone: what a group finds out after Close is not recorded. The keys of the group are removed by then.
func TestClosedGroupLeavesTheStoreAlone(t *testing.T) {
	t.Parallel()
	groups := newWorld(t, 2, WithTransport(TCP))
	g := groups[0]
	must(t, g.Close())
	lost := &dist.Error{Op: "test", Code: dist.PeerLost, Rank: 1, Detail: "it is gone"}
	g.fail(lost)
	_ = g.formed.Blame(lost)
	ctx, cancel := context.WithTimeout(ctxOf(t), 5*time.Second)
	defer cancel()
	if there, err := g.store.Check(ctx, g.formed.Place.EndKey()); there || err != nil {
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
