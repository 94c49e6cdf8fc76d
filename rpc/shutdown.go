// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// shutdownRefs bounds the wait for references in a shutdown whose ctx has no deadline. It is PyTorch's.
const shutdownRefs = 100 * time.Second

// Shutdown leaves the world in order and then closes the agent. In a static world it waits for all workers to come to
// the same point. It lets the calls and fetches of this worker end, and those of other Go workers that it serves, and
// only then deletes the references that this worker holds. A static world ends when every worker has done so, and none
// has a call under way, or runs a function for [Remote]. In a dynamic world Shutdown notifies the others and leaves.
// When another worker of a static world has died it does not wait for it: the error is then cohort.PeerLost, and names
// the worker. When another Go worker has given up its own Shutdown, the error names that worker and has the code of its
// error, such as cohort.DeadlineExceeded, which is then not the caller's own deadline; cohort.Aborted if it was
// canceled.
//
// ctx bounds all of it, and up to a second and a half more in which a worker that gives up reads from the store which
// one did so first, and notifies the others. The agent is closed in any case when Shutdown returns; the error says
// which phase was not completed, and which workers were missing. A second Shutdown waits for the first one and returns
// its error, or that of its own ctx if that ends before. It corresponds to torch.distributed.rpc.shutdown.
func (a *Agent) Shutdown(ctx context.Context) error {
	failpoint.At("rpc.agent.shutdown")
	if !a.ending.begun.CompareAndSwap(false, true) {
		select {
		case <-a.ending.done:
			return a.ending.err
		case <-ctx.Done():
			return cohort.FromContext(ctx, "rpc: shutdown")
		}
	}
	defer close(a.ending.done)
	if a.net.Leaving.Swap(true) { // closed before
		return a.Close()
	}
	a.ending.err = a.leave(ctx)
	return a.ending.err
}

// ending is the shutdown of an agent. err is set before done is closed.
type ending struct {
	begun atomic.Bool
	done  chan struct{}
	err   error
}

// leave runs the phases of a shutdown and closes the agent. Close ends it early.
func (a *Agent) leave(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.net.Context, func() { cancel(context.Cause(a.net.Context)) })()
	var err error
	switch {
	case a.cfg.client:
		err = a.caller.Active.Idle(ctx)
	case a.cfg.worldSize > 0:
		err = a.shutdownStatic(ctx)
		if a.net.Context.Err() == nil { // a closed agent leaves without notice
			a.world.GaveUp(ctx, members{a}, err)
		}
	default:
		err = a.shutdownDynamic(ctx)
	}
	leaks := a.leakError()
	_ = a.Close()
	return errors.Join(err, leaks)
}

// phase runs one step of a shutdown and reports it.
func (a *Agent) phase(ctx context.Context, name string, fn func(context.Context) error) error {
	started := time.Now()
	a.cfg.logger.Debug("shutdown", slog.String("worker", a.name), slog.String("phase", name))
	err := fn(ctx)
	if a.cfg.hook != nil {
		a.cfg.hook.Emit(observe.Event{
			Kind: "rpc.shutdown", Phase: observe.End, Rank: cohort.Rank(a.id), Key: a.name, Detail: name, Dur: time.Since(started),
			Err: err,
		})
	}
	if err != nil {
		e := cohort.Wrap("rpc: shutdown", cohort.Aborted, err)
		e.Key, e.Detail = a.name, fmt.Sprintf("phase %q after %v: %v", name, time.Since(started).Round(time.Millisecond), err)
		return e
	}
	return nil
}

func (a *Agent) shutdownStatic(ctx context.Context) error {
	if a.cfg.worldSize > 1 {
		if err := a.phase(ctx, "wait for all workers", func(ctx context.Context) error {
			_, err := a.allGather(ctx, nil)
			return err
		}); err != nil {
			return err
		}
	}
	if err := a.release(ctx); err != nil {
		return err
	}
	return a.phase(ctx, "wait for calls under way", func(ctx context.Context) error {
		return a.world.EndStatic(ctx, members{a}, &a.caller.Active)
	})
}

func (a *Agent) shutdownDynamic(ctx context.Context) error {
	if err := a.release(ctx); err != nil {
		return err
	}
	if err := a.phase(ctx, "wait for calls under way", a.caller.Active.Idle); err != nil { // begun meanwhile
		return err
	}
	return a.phase(ctx, "notify the others", func(ctx context.Context) error {
		return a.world.Leave(ctx, members{a}, func() []string { return a.world.Others(members{a}) })
	})
}

// release gives the references back when nothing that is under way can need them. When the time is over before, they are given
// back anyway.
func (a *Agent) release(ctx context.Context) error {
	calls := a.phase(ctx, "let calls end", a.callsEnd)
	if err := a.phase(ctx, "release references", a.dropHeld); err != nil {
		a.cfg.logger.Warn("references were not released in time", slog.String("worker", a.name), slog.String("err", err.Error()))
	}
	return calls
}

// callsEnd waits until no call of this worker is under way, and none that another Go worker waits for. A handler that shuts its
// own worker down does not wait for itself.
func (a *Agent) callsEnd(ctx context.Context) error {
	served := func() int { return a.server.Awaited() }
	if rpcslots.Of(ctx) != nil {
		served = func() int { return 0 }
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		failpoint.At("rpc.agent.calls")
		if err := a.caller.Active.Idle(ctx); err != nil {
			return err
		}
		if served() == 0 && a.caller.Active.Count() == 0 {
			return nil
		}
		failpoint.At("rpc.agent.calls.wait")
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			e := cohort.Ended(ctx, "rpc: shutdown")
			e.Detail = fmt.Sprintf("%d calls of other workers are served", served())
			return e
		}
	}
}

// dropHeld deletes the references that this worker holds and waits until their owners know.
func (a *Agent) dropHeld(ctx context.Context) error {
	ctx, cancel := rpcclient.Within(ctx, shutdownRefs)
	defer cancel()
	return a.refs.DropHeld(ctx)
}
