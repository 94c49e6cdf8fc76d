// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package waitctx bounds a wait by the timeout of a store, unless its context has a deadline of its own.
package waitctx

import (
	"context"
	"fmt"
	"time"
)

// WithTimeout returns the context for a waiting operation of a store with the given timeout. If ctx has a deadline, that
// one applies; otherwise the wait ends after timeout, and zero or less means no bound. The cause of a wait that ends so
// names the timeout.
func WithTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return ctx, func() {}
	}
	if _, bounded := ctx.Deadline(); bounded {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, timeoutError(timeout))
}

// timeoutError is the cause of a wait that ended by the store's timeout.
type timeoutError time.Duration

func (d timeoutError) Error() string {
	return fmt.Sprintf("no answer within the store's timeout of %v", time.Duration(d))
}

func (d timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }
