// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// World is a job as seen by one of its processes. Its methods are safe for concurrent use, and a process can have several
// worlds.
type World struct {
	member       *rendezvous.Member
	groupOptions []group.Option
	life         context.Context //nolint:containedctx // ends with the World, and with it the making of a group
	end          context.CancelCauseFunc

	joins sync.WaitGroup // agents that are being made; nothing is added once mu.leaving is set

	mu struct {
		sync.Mutex
		leaving bool // Shutdown or Close has begun: nothing is made any more
		group   *group.Group
		making  chan struct{} // closed when the one who makes the group is done
		agents  []*rpc.Agent
	}
}

func newWorld(member *rendezvous.Member, opts []group.Option) *World {
	w := &World{member: member, groupOptions: opts}
	w.life, w.end = context.WithCancelCause(context.Background())
	return w
}

// Store returns the store that all ranks share. It ends with the World.
func (w *World) Store() store.Store { return w.member.Store() }

// Rank returns the number of this process in the world. It corresponds to torch.distributed.get_rank.
func (w *World) Rank() cohort.Rank { return w.member.Rank() }

// Size returns the number of ranks, or -1 in an open world. It corresponds to torch.distributed.get_world_size.
func (w *World) Size() int { return w.member.Size() }

// Group returns the process group of all ranks, for collectives and messages. The first call forms it, together with the
// first call of every other rank or with PyTorch's init_process_group(backend="gloo"), and ctx bounds that; later calls
// return the same group at once. Pass options for it to [Join] with [WithGroup]. It ends with the World.
//
// After the group has failed or was closed, the next call forms a new one, together with the other ranks: those that are
// left, and a process that replaces the dead one and has joined with its rank. The failed group is closed.
//
// It corresponds to torch.distributed.group.WORLD.
func (w *World) Group(ctx context.Context) (*group.Group, error) {
	const op = "world: group"
	for {
		failpoint.At("world.group")
		w.mu.Lock()
		var old *group.Group
		if w.mu.group != nil && w.mu.group.Err() != nil && !w.mu.leaving {
			old, w.mu.group = w.mu.group, nil // this caller makes the next one: a group exists, so no other caller does
		}
		made, making, closed := w.mu.group, w.mu.making, w.mu.leaving
		first := !closed && made == nil && making == nil
		if first {
			w.mu.making = make(chan struct{})
		}
		w.mu.Unlock()
		switch {
		case closed:
			return nil, cohort.New(op, cohort.Closed, "the world was left")
		case made != nil:
			return made, nil
		case first:
			return w.makeGroup(ctx, old)
		}
		select {
		case <-making: // by another caller; if that failed we try ourselves
		case <-ctx.Done():
			return nil, cohort.FromContext(ctx, op)
		}
	}
}

// whileAlive returns a context that also ends with the World.
func (w *World) whileAlive(ctx context.Context) (alive context.Context, release func()) {
	alive, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(w.life, func() { cancel(context.Cause(w.life)) })
	return alive, func() {
		stop()
		cancel(nil)
	}
}

// makeGroup makes a group in place of old, which may be nil.
func (w *World) makeGroup(ctx context.Context, old *group.Group) (*group.Group, error) {
	const op = "world: group"
	ctx, release := w.whileAlive(ctx)
	defer release()
	if old != nil {
		_ = old.Close()
	}
	var g *group.Group
	var err error
	if w.Size() < 1 {
		err = cohort.New(op, cohort.InvalidArgument, "the world is open: a group needs a world size")
	} else {
		g, err = group.New(ctx, w.Store(), w.Rank(), w.Size(), w.groupOptions...)
	}
	failpoint.At("world.group.made")
	w.mu.Lock()
	making, leaving := w.mu.making, w.mu.leaving
	if !leaving { // else it stays, for leave to wait for
		w.mu.group, w.mu.making = g, nil
	}
	w.mu.Unlock()
	defer close(making)
	switch {
	case leaving:
		if g != nil {
			_ = g.Close()
		}
		return nil, cohort.New(op, cohort.Closed, "the world was left while its group was made")
	case err != nil:
		return nil, err
	}
	return g, nil
}

// begin lets nothing be made any more, and ends what is being made.
func (w *World) begin() {
	failpoint.At("world.leave")
	w.mu.Lock()
	w.mu.leaving = true
	w.mu.Unlock()
	w.end(cohort.New("world: world", cohort.Closed, "the world was left"))
}

// leave ends what uses the store, the last made first, and waits for it.
func (w *World) leave() error {
	w.joins.Wait()
	w.mu.Lock()
	g, making := w.mu.group, w.mu.making
	w.mu.Unlock()
	if making != nil {
		<-making
	}
	if g == nil {
		return nil
	}
	return g.Close()
}

// String names the rank and its world.
func (w *World) String() string {
	if w.member == nil {
		return "no world"
	}
	if w.Size() < 1 {
		return fmt.Sprintf("rank %d of an open world on %v", w.Rank(), w.Store())
	}
	return fmt.Sprintf("rank %d of %d on %v", w.Rank(), w.Size(), w.Store())
}

// Shutdown leaves the world in order: first the agents of [World.RPC] shut down, then the group and its sub-groups are
// closed, then the store. A rank that hosts the store stays until all its clients have disconnected or ctx ends; in
// either case everything is closed when Shutdown returns, and the error reports whether clients were cut off. A group or an
// agent that is being made at the same time ends with [cohort.Closed]. Operations that are not complete end with
// [cohort.Closed], and ranks that still need this one get [cohort.PeerLost]. So first wait for what was posted and, if ranks
// finish at different times, end with a barrier.
//
// It corresponds to torch.distributed.destroy_process_group, which however ends the store while others may use it.
func (w *World) Shutdown(ctx context.Context) error {
	w.begin()
	agents := w.endAgents(func(a *rpc.Agent) error { return a.Shutdown(ctx) })
	return errors.Join(agents, w.leave(), w.member.Shutdown(ctx))
}

// Close ends the world at once, even while a Shutdown waits. It is idempotent and returns when all goroutines of the
// world have ended.
func (w *World) Close() error {
	w.begin()
	agents := w.endAgents((*rpc.Agent).Close)
	return errors.Join(agents, w.leave(), w.member.Close())
}
