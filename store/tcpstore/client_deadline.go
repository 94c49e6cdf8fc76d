// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// watcher ends the reads or writes of one call when its context ends or its limit passes. It belongs to the goroutine
// that reads, or to the one that writes; only what it hands to context.AfterFunc runs elsewhere.
//
// Two parties set the connection's deadline: the watcher, to a time that is still to come, and the end of the context, to
// one that has passed. The second must never be undone by the first. So the context is looked at after every arming and
// before the read or write that follows: an end that came before is seen there, and one that comes later finds the
// deadline armed and moves it.
type watcher struct {
	ctx   context.Context //nolint:containedctx // that of one call, on its stack
	limit time.Time       // zero: none
	until time.Time       // when the next read or write returns at the latest; zero: never
	armed *time.Time      // the connection's deadline, as its owner knows it
	set   func(time.Time) error
	watch ctxdial.Interrupt
}

// unwatched returns how long a read or write may take before ctx is watched. Nearly all are over before that, and to be
// told of a context's end costs more than a short deadline that many calls share.
func unwatched(ctx context.Context, limit time.Time) time.Time {
	if ctx.Done() == nil {
		return limit
	}
	if first := time.Now().Add(unwatchedTime); limit.IsZero() || first.Before(limit) {
		return first
	}
	return limit
}

// arm prepares the next read or write. Its error says that the call is over instead.
func (w *watcher) arm() error {
	arm(w.armed, w.until, w.set)
	if !w.watch.Begun() {
		return nil // until is near, or there is no context to watch
	}
	failpoint.At("tcpstore.watch.armed")
	return endOf(w.ctx, w.limit)
}

// passed is called after a read or write that ended by its deadline. It returns why the call is over, or nil when it goes
// on; then the context is watched from here on.
func (w *watcher) passed() error {
	*w.armed = ctxdial.LongAgo
	if err := endOf(w.ctx, w.limit); err != nil {
		return err
	}
	if w.until.Equal(w.limit) {
		return nil // a deadline that somebody else had left, or a timer that was early
	}
	failpoint.At("tcpstore.watch.begin")
	w.until = w.limit
	w.watch = ctxdial.InterruptBy(w.ctx, w.set)
	failpoint.At("tcpstore.watch.begun")
	return nil
}

// end stops watching. Afterwards nobody else changes the deadline.
func (w *watcher) end() {
	failpoint.At("tcpstore.watch.end")
	if w.watch.End() {
		*w.armed = ctxdial.LongAgo
	}
}

// arm sets a deadline. One that is armed already and not later than limit stays, so that in the ordinary course no call
// has to touch the timer; who finds such a deadline passed before its own limit arms again.
func arm(armed *time.Time, limit time.Time, set func(time.Time) error) {
	switch {
	case limit.IsZero():
		if armed.IsZero() {
			return
		}
	case !armed.IsZero() && !armed.After(limit) && time.Until(*armed) > 0:
		return
	}
	*armed = limit
	_ = set(limit)
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
