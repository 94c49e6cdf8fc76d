// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
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
	begun bool // the context is watched
}

// unwatched returns how long a read or write may take before ctx is watched. Nearly all are over before that, and to be
// notified of a context's end costs more than a short deadline that many calls share.
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
//
// A deadline that is armed already and not later than until stays, so that in the ordinary course no call has to touch the timer; who finds
// such a deadline passed before its own limit arms again.
func (w *watcher) arm() error {
	unbounded := w.until.IsZero()
	near := !unbounded && !w.armed.IsZero() && !w.armed.After(w.until) && time.Until(*w.armed) > 0
	if !near && (!unbounded || !w.armed.IsZero()) {
		*w.armed = w.until
		_ = w.set(w.until)
	}
	if !w.begun {
		return nil // until is near, or no context is watched
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
		return nil // a deadline that an earlier call had left, or a timer that was early
	}
	failpoint.At("tcpstore.watch.begin")
	w.until = w.limit
	w.watch = ctxdial.InterruptBy(w.ctx, w.set)
	w.begun = w.watch.Begun()
	failpoint.At("tcpstore.watch.begun")
	return nil
}

// end stops watching. Afterwards only the connection's owner changes the deadline.
func (w *watcher) end() {
	failpoint.At("tcpstore.watch.end")
	if w.begun && w.watch.End() {
		*w.armed = ctxdial.LongAgo
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

const (
	// popGrace is how long a pop whose time is up waits to learn whether it took an item.
	popGrace = time.Second
	// finalReplyTime is how long a wait that the store's timeout ended listens for the server's word that nothing came. A
	// server that does not even say that is not there, which is another reason than a key that no client has set.
	finalReplyTime = 200 * time.Millisecond
	// minReplyTime is the least time that a server has for an answer that waits for nothing. The store's timeout may be
	// shorter, to look whether a key comes.
	minReplyTime = 2 * time.Second
)

// limitOf is when an operation whose context has no deadline ends: zero means never.
func (c *Client) limitOf(ctx context.Context, waits bool) time.Time {
	if _, bounded := ctx.Deadline(); bounded {
		return time.Time{}
	}
	timeout := boundOf(c.Timeout(), waits)
	if timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// withinTimeout bounds a question by the store's timeout, as limitOf does for an operation that waits for nothing.
func (c *Client) withinTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if limit := c.limitOf(ctx, false); !limit.IsZero() {
		return context.WithDeadlineCause(ctx, limit, errLimit)
	}
	return context.WithCancel(ctx)
}

// boundOf is how long an operation without a deadline of its own may take; zero or less: for ever. Only a wait may take
// for ever: what the server answers at once has the default timeout then.
func boundOf(timeout time.Duration, waits bool) time.Duration {
	switch {
	case waits:
		return timeout
	case timeout <= 0:
		return store.DefaultTimeout
	}
	return max(timeout, minReplyTime)
}

// The ends of an operation by the store's timeout.
var (
	errLimit  = cohort.New("tcpstore", cohort.DeadlineExceeded, "no answer within the store's timeout")
	errSilent = cohort.New("tcpstore", cohort.DeadlineExceeded,
		"no answer within the store's timeout, and the server did not answer a status request")
)

// endOf returns why an operation must end now, or nil.
func endOf(ctx context.Context, limit time.Time) error {
	if e := cohort.FromContext(ctx, "tcpstore"); e != nil {
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
	failpoint.At("tcpstore.wait.sleep")
	select {
	case <-wake:
		return nil
	case <-ctx.Done():
		return cohort.FromContext(ctx, "tcpstore")
	case <-alarm:
		return errLimit
	}
}
