// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// agree returns when all ranks have connected. The connections of this rank are made by then, and tell of a rank that dies
// meanwhile: no other rank would.
func (a *attempt) agree(ctx context.Context) error {
	waiting, end := context.WithCancelCause(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		failpoint.At("bootstrap.agree.watch")
		select {
		case err := <-a.Failure.died:
			end(err)
		case <-waiting.Done():
		}
	})
	err := a.Place.Connected(waiting)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		err = context.Cause(waiting)
	}
	end(nil)
	failpoint.At("bootstrap.agree.end")
	tasks.Wait()
	if err == nil || errors.Is(err, assemble.ErrAttemptAbandoned) || rankOf(err) != cohort.NoRank {
		return err
	}
	return cohort.Wrap("group: new", cohort.Unavailable, err)
}

// explain returns why an attempt failed, whatever this rank saw of it. A reason that a rank has recorded is the same for all. Without
// one, an attempt that was given up is tried again, and over says that this rank knows that it was.
func (a *attempt) explain(ctx context.Context, err error, over bool) error {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), judgeLimit)
	defer cancel()
	if ctx.Err() == nil {
		if reason := a.Failure.reason(look); reason != nil {
			return reason
		}
		over = over || errors.Is(err, assemble.ErrAttemptAbandoned) || a.Place.Closed(look)
	}
	if over || ctx.Err() != nil {
		a.remember(ctx, err)
	}
	if over {
		return errors.Join(assemble.ErrAttemptAbandoned, err)
	}
	return err
}

// suspectLimit bounds how long a rank whose attempt has ended takes to find out for whom it waited.
const suspectLimit = 2 * time.Second

// remember keeps for whom this rank waited when an attempt ended. What it saw itself counts only if it saw the end of a rank that may be
// the reason: one that gave up closes its connections too. If there are several, all ranks name the one that was recorded first.
func (a *attempt) remember(ctx context.Context, err error) {
	_ = a.Place.GiveUp(ctx) // so that the others do not suspect this rank
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspectLimit)
	defer cancel()
	suspects, known := a.Place.Suspects(look)
	if r := rankOf(err); r != cohort.NoRank && (!known || slices.Contains(suspects, int(r))) {
		suspects = []int{int(r)}
	}
	if known && len(suspects) > 0 {
		suspects = a.Failure.late(look, suspects)
	}
	a.p.narrow("connect", suspects...)
}

// rankOf returns the rank that an error names.
func rankOf(err error) cohort.Rank {
	if e, ok := errors.AsType[*cohort.Error](err); ok {
		return e.Rank
	}
	return cohort.NoRank
}

// heldLosses keeps losses back until it is known that they matter.
type heldLosses struct {
	to func(transport.Loss)

	mu struct {
		sync.Mutex
		held     []transport.Loss
		released bool
	}
}

func (h *heldLosses) lost(loss transport.Loss) {
	failpoint.At("bootstrap.losses.hold")
	h.mu.Lock()
	released := h.mu.released
	if !released {
		h.mu.held = append(h.mu.held, loss)
	}
	h.mu.Unlock()
	if released {
		h.to(loss)
	}
}

// release passes them on, and all that come later.
func (h *heldLosses) release() {
	failpoint.At("bootstrap.losses.release")
	h.mu.Lock()
	held := h.mu.held
	h.mu.held, h.mu.released = nil, true
	h.mu.Unlock()
	for _, loss := range held {
		h.to(loss)
	}
}
