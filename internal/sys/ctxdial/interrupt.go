// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// LongAgo is a deadline that has passed.
var LongAgo = time.Unix(1, 0)

// Interrupt makes blocked reads and writes of a connection return when a context ends. Its End must be called.
type Interrupt struct {
	stop func() bool
	done chan struct{}
}

// InterruptBy moves a deadline of a connection into the past when ctx ends. set is the method of the connection that sets it: that
// of reads, that of writes, or that of both.
func InterruptBy(ctx context.Context, set func(time.Time) error) Interrupt {
	if ctx.Done() == nil {
		return Interrupt{}
	}
	done := make(chan struct{})
	return Interrupt{done: done, stop: context.AfterFunc(ctx, func() {
		failpoint.At("tcpstore.dial.interrupt") // the store's client uses it
		_ = set(LongAgo)
		close(done)
	})}
}

// Begun reports whether there is a context to watch.
func (i Interrupt) Begun() bool { return i.stop != nil }

// End stops watching and reports whether the context had ended: then the deadline is in the past.
func (i Interrupt) End() bool {
	if i.stop == nil || i.stop() {
		return false
	}
	failpoint.At("tcpstore.dial.interrupted")
	<-i.done // so that the deadline is not changed behind the next user's back
	return true
}
