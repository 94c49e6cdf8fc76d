// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
)

func TestOpIsReusable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var op Op
		for round := range 3 {
			op.Begin()
			if op.Completed() {
				t.Fatalf("round %d: complete before its completion", round)
			}
			want := errors.New("reason")
			go op.Complete(want)
			// Whether or not anybody waits, the next round must start clean.
			if round != 1 {
				if err := op.Await(t.Context()); !errors.Is(err, want) {
					t.Fatalf("round %d: %v", round, err)
				}
				if err := op.Await(t.Context()); !errors.Is(err, want) {
					t.Fatalf("round %d, second wait: %v", round, err)
				}
			}
			synctest.Wait()
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var op Op
		op.Begin()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := op.Await(ctx); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatal(err)
		}
		op.Complete(nil)
		if err := op.Await(ctx); err != nil {
			t.Fatalf("a complete op must win over an ended context: %v", err)
		}
	})
}

func TestSetEndsEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set Set
		for range 3 { // sets are reused
			set.Reset()
			a, b := Op{Set: &set}, Op{Set: &set}
			a.Begin()
			b.Begin()
			done := make(chan error)
			go func() { done <- a.Await(t.Context()) }()
			synctest.Wait()
			reason := errors.New("reason")
			b.Complete(reason)
			if err := <-done; !errors.Is(err, reason) || a.Completed() {
				t.Fatalf("%v, complete %v", err, a.Completed())
			}
			a.Complete(nil)
			if err := a.Await(t.Context()); err != nil {
				t.Fatalf("an op that is complete has its own result: %v", err)
			}
		}
	})
}
