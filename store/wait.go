// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

// WaitContext returns the context for a waiting operation of a store with the given timeout. If ctx has a deadline, that
// one applies; otherwise the wait ends after timeout, and zero or less means no bound. Stores use it with [WaitError].
func WaitContext(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return ctx, func() {}
	}
	if _, bounded := ctx.Deadline(); bounded {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, timeoutError(timeout))
}

// WaitError returns the error of an operation whose context, from [WaitContext], ended while it waited for keys: it
// matches [ErrTimeout] and context.DeadlineExceeded, or context.Canceled. It returns nil while ctx is alive.
func WaitError(op string, ctx context.Context, keys ...string) error { //nolint:revive // the operation reads first
	if ctx.Err() == nil {
		return nil
	}
	e := dist.Ended(op, ctx)
	const shown = 8
	if len(keys) > shown {
		e.Key = fmt.Sprintf("%s and %d more", strings.Join(keys[:shown], ", "), len(keys)-shown)
	} else {
		e.Key = strings.Join(keys, ", ")
	}
	return e
}

// timeoutError is the cause of a wait that ended by the store's timeout.
type timeoutError time.Duration

func (d timeoutError) Error() string {
	return fmt.Sprintf("no answer within the store's timeout of %v", time.Duration(d))
}

func (d timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }
