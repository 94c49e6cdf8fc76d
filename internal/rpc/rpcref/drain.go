// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// DropHeld deletes the references that this worker holds and waits until their owners know. It does not wait for those that others
// hold of this worker's objects: they do the same.
func (r *Refs) DropHeld(ctx context.Context) error {
	deaf := r.deaf(ctx)
	if err := r.await(ctx, deaf, func(c rrefcore.Counts) bool { return c.PendingUsers+c.PendingChildren == 0 }); err != nil {
		r.cfg.Logger.Warn("references are still pending", slog.String("worker", r.cfg.Name), slog.String("err", err.Error()))
	}
	r.dropAll(deaf)
	return r.await(ctx, deaf, func(c rrefcore.Counts) bool {
		return c.PendingUsers+c.ConfirmedUsers+c.PendingChildren+c.PendingFutures == 0
	})
}

// tellTime bounds how long DropHeld asks which workers are Go workers. Until it knows it releases nothing.
const tellTime = 2 * time.Second

// deaf returns what tells of which workers nothing can come any more: of a PyTorch worker whose pipe has ended. A Go worker on the
// same transport opens another one, and so may a worker of which the kind is not known.
func (r *Refs) deaf(ctx context.Context) func(rrefcore.Worker) bool {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	returns := map[rrefcore.Worker]bool{}
	for _, p := range r.cfg.Net.Members() {
		if !p.SpeaksCohort() {
			isGo, err := r.cfg.IsGo(ctx, p.Name)
			returns[p.ID] = isGo || err != nil
		}
	}
	return func(w rrefcore.Worker) bool { return !returns[w] && r.cfg.Net.RequestPipesClosed(w) }
}

// dropAll closes every reference; their later use fails with a clear error.
func (r *Refs) dropAll(deaf func(rrefcore.Worker) bool) {
	failpoint.At("rpc.refs.drop_all")
	r.mu.Lock()
	for fork, h := range r.mu.handles {
		h.settle(r.unusable(h, rrefcore.Closed))
		delete(r.mu.handles, fork)
	}
	r.mu.m.UnpinStuck(deaf)
	r.mu.m.DropAll()
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
}

// await polls the machine until it has come to rest, but for what is stuck.
func (r *Refs) await(ctx context.Context, deaf func(rrefcore.Worker) bool, done func(rrefcore.Counts) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		r.mu.Lock()
		c := r.mu.m.Counts()
		c.PendingChildren -= r.mu.m.Stuck(deaf)
		r.mu.Unlock()
		if done(c) {
			return nil
		}
		failpoint.At("rpc.refs.await")
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			e := cohort.Ended(ctx, "rpc: shutdown")
			e.Detail = fmt.Sprintf("%d pending users, %d confirmed users, %d pending children and %d control messages are left",
				c.PendingUsers, c.ConfirmedUsers, c.PendingChildren, c.PendingFutures)
			return e
		}
	}
}
