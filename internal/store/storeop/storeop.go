// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storeop has what the operations of all stores share: counters, and the errors that must read the same
// whichever store returns them.
package storeop

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-dist/cohort"
)

// WaitError returns the error of an operation whose context, from [waitctx.WithTimeout], ended while it waited for keys: it
// matches store.ErrTimeout and context.DeadlineExceeded, or context.Canceled. It returns nil while ctx is alive.
func WaitError(op string, ctx context.Context, keys ...string) error { //nolint:revive // the operation reads first
	if ctx.Err() == nil {
		return nil
	}
	e := cohort.Ended(ctx, op)
	e.Key = KeyNames(keys)
	return e
}

// ShownKeys is how many of many keys an error names.
const ShownKeys = 8

// KeyNames are keys as errors name them: the first few of many.
func KeyNames(keys []string) string {
	if len(keys) > ShownKeys {
		return fmt.Sprintf("%s and %d more", strings.Join(keys[:ShownKeys], ", "), len(keys)-ShownKeys)
	}
	return strings.Join(keys, ", ")
}

// CheckMultiSet returns the error of a multi-set whose keys and values do not pair up.
func CheckMultiSet(op string, keys []string, values [][]byte) error {
	if len(keys) == len(values) {
		return nil
	}
	return cohort.Newf(op, cohort.InvalidArgument,
		"keys and values must be of same size, got %d keys and %d values", len(keys), len(values))
}

// QueueEmpty returns the error of a pop that does not wait, on an empty queue.
func QueueEmpty(op, key string) *cohort.Error {
	return &cohort.Error{Op: op, Code: cohort.Empty, Rank: cohort.NoRank, Key: key, Detail: "queue is empty"}
}

// Detail is an error's text without the parts that an error around it says again.
func Detail(err error) string {
	if e, ok := err.(*cohort.Error); ok { //nolint:errorlint // only the outermost one repeats itself
		if e.Detail != "" {
			return e.Detail
		}
		if e.Err != nil {
			return e.Err.Error()
		}
		return ""
	}
	if _, ok := err.(cohort.Code); ok { //nolint:errorlint // a bare code says nothing more
		return ""
	}
	return err.Error()
}
