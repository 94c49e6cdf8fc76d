// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort/dist"
)

// TestWhyEnded: of the end of the context and the reason for which the connecting was ended, the first counts, whatever has followed when it is looked
// at.
func TestWhyEnded(t *testing.T) {
	t.Parallel()
	lost := &dist.Error{Op: "group: new", Code: dist.DeadlineExceeded, Rank: 3, Err: context.DeadlineExceeded}
	above := dist.New("job", dist.Aborted, "it was ended")
	for name, c := range map[string]struct {
		first, then func(end, lose context.CancelCauseFunc)
		code        dist.Code
		rank        dist.Rank
	}{
		"lost":              {first: func(_, lose context.CancelCauseFunc) { lose(lost) }, code: dist.DeadlineExceeded, rank: 3},
		"lost, then ended":  {first: func(_, lose context.CancelCauseFunc) { lose(lost) }, then: func(end, _ context.CancelCauseFunc) { end(nil) }, code: dist.DeadlineExceeded, rank: 3},
		"lost, then caused": {first: func(_, lose context.CancelCauseFunc) { lose(lost) }, then: func(end, _ context.CancelCauseFunc) { end(above) }, code: dist.DeadlineExceeded, rank: 3},
		"ended":             {first: func(end, _ context.CancelCauseFunc) { end(nil) }, then: func(_, lose context.CancelCauseFunc) { lose(lost) }, code: dist.Canceled, rank: 1},
		"caused":            {first: func(end, _ context.CancelCauseFunc) { end(above) }, then: func(_, lose context.CancelCauseFunc) { lose(lost) }, code: dist.Canceled, rank: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			connecting, lose := context.WithCancelCause(ctx)
			defer lose(nil)
			c.first(end, lose)
			store := dist.FromContext(connecting, "get") // what the store says that was asked with the context
			if c.then != nil {
				c.then(end, lose)
			}
			err := whyEnded(ctx, connecting, &dist.Error{Op: "gloo: wait", Code: dist.CodeOf(store), Rank: 1, Err: store})
			if e, ok := errors.AsType[*dist.Error](err); !ok || e.Code != c.code || e.Rank != c.rank {
				t.Errorf("%v", err)
			}
		})
	}
}
