// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
)

// reasonToStop returns a reason to stop waiting for the current step: another rank gave up, a rank is lost or stalled, the
// caller's deadline has passed.
func (e *Engine) reasonToStop(ctx context.Context, now time.Time) error {
	if err := e.aborted(); err != nil {
		return err
	}
	if e.life.closing.Load() {
		return e.giveUp(cohort.New(e.op.name, cohort.Closed, "the engine was closed during the operation"))
	}
	if err := e.endIfLost(); err != nil {
		return err
	}
	if !e.op.deadline.IsZero() && !now.Before(e.op.deadline) {
		return e.giveUp(e.withMissing(cohort.New(e.op.name, cohort.DeadlineExceeded, "the operation's timeout passed")))
	}
	if ctx.Err() != nil {
		return &collective.Interrupted{Cause: e.withMissing(cohort.Ended(ctx, e.op.name))}
	}
	return nil
}

// endIfLost abandons the group because of a lost rank. A rank that gave up itself has sent its reason before it closed: then that is the reason.
func (e *Engine) endIfLost() error {
	lost := e.whoIsLost()
	if lost == nil {
		return nil
	}
	if err := e.aborted(); err != nil {
		return err
	}
	return e.giveUp(lost)
}

// withMissing adds which ranks the operation waits for.
func (e *Engine) withMissing(err *cohort.Error) *cohort.Error {
	var missing []int
	awaited := e.peers
	if r := e.op.request; e.op.waiting && r != nil && e.needs(r) == needRoot {
		awaited = []int{r.Root}
	}
	for _, p := range awaited {
		if !e.steps.took(p, e.steps.awaited) {
			missing = append(missing, p)
		}
	}
	if err.Detail == "" && err.Err != nil {
		err.Detail = err.Err.Error()
	}
	err.Detail += fmt.Sprintf(" (waiting for ranks %v)", missing)
	return err
}
