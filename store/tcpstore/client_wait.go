// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/store"
)

// limitOf is when an operation whose context has no deadline ends: zero means never.
//
// The store's timeout is meant for waits; a user may make it short to look whether a key comes. Operations that the
// server answers at once are bounded only against a server that hangs.
func limitOf(ctx context.Context, timeout time.Duration, waits bool) time.Time {
	if _, bounded := ctx.Deadline(); bounded {
		return time.Time{}
	}
	if !waits {
		timeout = max(timeout, store.DefaultTimeout)
	}
	if timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// errLimit is the end of an operation by the store's timeout.
var errLimit = dist.New("tcpstore", dist.DeadlineExceeded, "no answer within the store's timeout")

// endOf returns why an operation must end now, or nil.
func endOf(ctx context.Context, limit time.Time) error {
	if e := dist.FromContext("tcpstore", ctx); e != nil {
		return e
	}
	if !limit.IsZero() && time.Until(limit) <= 0 {
		return errLimit
	}
	return nil
}

// sleepUntil waits for wake. It returns an error when ctx ends or limit passes first.
func sleepUntil(ctx context.Context, limit time.Time, wake <-chan struct{}) error {
	var alarm <-chan time.Time
	if !limit.IsZero() {
		timer := time.NewTimer(time.Until(limit))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-wake:
		return nil
	case <-ctx.Done():
		return dist.FromContext("tcpstore", ctx)
	case <-alarm:
		return errLimit
	}
}

// timeoutDetail says how long the store's timeout is.
func timeoutDetail(timeout time.Duration) string {
	return fmt.Sprintf("no answer within the store's timeout of %v", timeout)
}

// interruptBy is interruptOn for one direction.
func interruptBy(ctx context.Context, set func(time.Time) error) interrupt {
	if ctx.Done() == nil {
		return interrupt{}
	}
	done := make(chan struct{})
	return interrupt{done: done, stop: context.AfterFunc(ctx, func() {
		_ = set(longAgo)
		close(done)
	})}
}
