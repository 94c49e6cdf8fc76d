// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/observe"
)

// TestTrace: a pass over one call has a beginning and an end at the worker that began it, and within that time gradients leave and arrive
// once at each of the two. A pass that fails has its error.
func TestTrace(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		var mu sync.Mutex
		var all []observe.Event
		ws := newWorld(t, 2, basics(), distautograd.WithHook(func(e observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
		}))
		events := func() []observe.Event {
			mu.Lock()
			defer mu.Unlock()
			taken := all
			all = nil
			return taken
		}
		ctx, c := ws[0].open(t)
		loss := call(ctx, t, ws[0], "w1", "t.mul", param(2), param(3)).Sum()
		if early := events(); len(early) > 0 {
			t.Errorf("before the pass: %v", early)
		}
		backward(ctx, t, c, loss, opts...)
		got := events()
		first, last := got[0], got[len(got)-1]
		if first.Kind != "autograd.backward" || first.Phase != observe.Begin || last.Kind != first.Kind || last.Phase != observe.End ||
			first.Rank != 0 || last.Rank != 0 || first.Key != strconv.FormatInt(int64(c.ID()), 10) ||
			last.Dur != last.Time.Sub(first.Time) || last.Err != nil {
			t.Errorf("the pass is from %+v to %+v", first, last)
		}
		var order []string
		from := time.Time{}
		for _, e := range got[1 : len(got)-1] {
			order = append(order, fmt.Sprintf("%s at %d", e.Kind, e.Rank))
			if e.Phase != observe.Point || e.Peer != ws[1-int(e.Rank)].name() || e.Key == "" {
				t.Errorf("%+v", e)
			}
			if e.Time.Before(first.Time) || e.Time.After(last.Time) || e.Time.Before(from) {
				t.Errorf("%s at %v is not within the pass, or before what led to it", e.Kind, e.Time)
			}
			from = e.Time
		}
		if want := "autograd.recv at 0, autograd.send at 1, autograd.recv at 1, autograd.send at 0"; strings.Join(order, ", ") != want {
			t.Errorf("%v, want %s", order, want)
		}

		ctx, c = ws[0].open(t)
		loss = call(ctx, t, ws[0], "w1", "t.fail", param(2)).Sum()
		err := c.Backward(ctx, []*autograd.Variable{loss}, opts...)
		if got := events(); err == nil || !errors.Is(got[len(got)-1].Err, err) || got[len(got)-1].Phase != observe.End {
			t.Errorf("a pass that failed with %v ends with %+v", err, got[len(got)-1])
		}
	})
}

// TestHookPanics: a hook with a bug takes no pass with it, neither where it begins nor where gradients come by.
func TestHookPanics(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ws := newWorld(t, 2, basics(), distautograd.WithHook(func(observe.Event) { panic("a bug") }))
		ctx, c := ws[0].open(t)
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.mul", param(2), param(3)).Sum(), opts...)
	})
}
