// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
)

// TestWhyEnded: of the end of the context and the reason for which the connecting was ended, the first counts, whatever
// has followed when it is looked at.
func TestWhyEnded(t *testing.T) {
	t.Parallel()
	lost := &cohort.Error{Op: "group: new", Code: cohort.DeadlineExceeded, Rank: 3, Err: context.DeadlineExceeded}
	above := cohort.New("job", cohort.Aborted, "it was ended")
	for name, c := range map[string]struct {
		first, then func(end, lose context.CancelCauseFunc)
		code        cohort.Code
		rank        cohort.Rank
	}{
		"lost": {first: func(_, lose context.CancelCauseFunc) { lose(lost) }, code: cohort.DeadlineExceeded, rank: 3},
		"lost, then ended": {
			first: func(_, lose context.CancelCauseFunc) { lose(lost) },
			then:  func(end, _ context.CancelCauseFunc) { end(nil) }, code: cohort.DeadlineExceeded, rank: 3,
		},
		"lost, then caused": {
			first: func(_, lose context.CancelCauseFunc) { lose(lost) },
			then:  func(end, _ context.CancelCauseFunc) { end(above) }, code: cohort.DeadlineExceeded, rank: 3,
		},
		"ended": {
			first: func(end, _ context.CancelCauseFunc) { end(nil) },
			then:  func(_, lose context.CancelCauseFunc) { lose(lost) }, code: cohort.Canceled, rank: 1,
		},
		"caused": {
			first: func(end, _ context.CancelCauseFunc) { end(above) },
			then:  func(_, lose context.CancelCauseFunc) { lose(lost) }, code: cohort.Canceled, rank: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			connecting, lose := context.WithCancelCause(ctx)
			defer lose(nil)
			c.first(end, lose)
			store := cohort.FromContext(connecting, "get") // what the store says that was asked with the context
			if c.then != nil {
				c.then(end, lose)
			}
			err := endReason(ctx, connecting, &cohort.Error{Op: "gloo: wait", Code: cohort.CodeOf(store), Rank: 1, Err: store})
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != c.code || e.Rank != c.rank {
				t.Errorf("%v", err)
			}
		})
	}
}
