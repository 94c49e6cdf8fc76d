// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
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
	if timeout = boundOf(timeout, waits); timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// boundOf is how long an operation without a deadline of its own may take; zero or less: for ever.
func boundOf(timeout time.Duration, waits bool) time.Duration {
	if waits {
		return timeout
	}
	return max(timeout, store.DefaultTimeout)
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

// timeoutDetail says that the store's timeout has passed; for a wait in the words of PyTorch, which users search for.
func timeoutDetail(q *request, timeout time.Duration) string {
	if !q.wait {
		return fmt.Sprintf("no answer within %v", boundOf(timeout, false))
	}
	keys := wire.KeyPrefix + q.key
	if q.keys != nil {
		keys = wire.KeyPrefix + strings.Join(q.keys[:min(len(q.keys), shownKeys)], ", "+wire.KeyPrefix)
	}
	return fmt.Sprintf("wait timeout after %dms, keys: %s; nobody has set them within the store's timeout of %v",
		timeout.Milliseconds(), keys, timeout)
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
