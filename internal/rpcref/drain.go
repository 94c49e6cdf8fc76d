// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// DropAll closes every reference; their later use fails with a clear error.
func (r *Refs) DropAll() {
	moment.At("rpc.refs.drop_all")
	r.mu.Lock()
	for fork, h := range r.mu.handles {
		h.settle(r.unusable(h, rrefcore.Closed))
		delete(r.mu.handles, fork)
	}
	r.mu.m.DropAll()
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
}

// Await polls the machine until it has come to rest.
func (r *Refs) Await(ctx context.Context, done func(rrefcore.Counts) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		r.mu.Lock() // no point: it looks again and again
		c := r.mu.m.Counts()
		r.mu.Unlock()
		if done(c) {
			return nil
		}
		moment.At("rpc.refs.await")
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			e := dist.Ended(ctx, "rpc: shutdown")
			e.Detail = fmt.Sprintf("%d pending users, %d confirmed users, %d pending children, %d forks of own objects and %d control messages are left",
				c.PendingUsers, c.ConfirmedUsers, c.PendingChildren, c.Forks, c.PendingFutures)
			return e
		}
	}
}
