// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

func within50ms(ctx context.Context, t *testing.T) context.Context {
	t.Helper()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	t.Cleanup(cancel)
	return short
}

// The default applies to calls without a deadline, and only to those that begin after it was set.
func TestDefaultTimeoutUsed(t *testing.T) {
	w := start(t, 2)
	a := w.nodes[0].Agent
	ctx := context.Background() // without deadline
	a.SetTimeout(50 * time.Millisecond)
	_, err := rpc.Call[any](ctx, a, name(1), "t.sleep", 1.0)
	wantErr(t, err, cohort.DeadlineExceeded, name(1)) // of this side, or of the other one, which was a little quicker
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not a context.DeadlineExceeded", err)
	}
	var futures []*cohort.Future[any]
	for range 10 {
		futures = append(futures, rpc.Async[any](ctx, a, name(1), "t.sleep", 1.0))
	}
	for _, f := range futures {
		_, err = f.Await(ctx)
		wantErr(t, err, cohort.DeadlineExceeded)
	}
	a.SetTimeout(limit)
	early := rpc.Async[any](ctx, a, name(1), "t.sleep", 0.2)
	a.SetTimeout(50 * time.Millisecond)
	_, err = rpc.Async[any](ctx, a, name(1), "t.sleep", 1.0).Await(ctx)
	wantErr(t, err, cohort.DeadlineExceeded)
	if _, err := early.Await(ctx); err != nil {
		t.Errorf("a call that began before: %v", err)
	}
	a.SetTimeout(0)
	if _, err := rpc.Call[any](ctx, a, name(1), "t.sleep", 0.1); err != nil {
		t.Errorf("without bound: %v", err)
	}
}

func TestPerCallTimeouts(t *testing.T) {
	w := start(t, 2)
	a := w.nodes[0].Agent
	_, err := rpc.Call[any](within50ms(w.ctx, t), a, name(1), "t.sleep", 1.0)
	wantErr(t, err, cohort.DeadlineExceeded)
	_, err = rpc.Async[any](within50ms(w.ctx, t), a, name(1), "t.sleep", 1.0).Await(w.ctx)
	wantErr(t, err, cohort.DeadlineExceeded)
	// A call with more time than the default has it.
	a.SetTimeout(50 * time.Millisecond)
	_, err = rpc.Call[any](w.ctx, a, name(1), "t.sleep", 0.2)
	must(t, err)
	_, err = rpc.Async[any](w.ctx, a, name(1), "t.sleep", 0.2).Await(w.ctx)
	must(t, err)
	// To oneself the same holds.
	_, err = rpc.Call[any](within50ms(w.ctx, t), a, name(0), "t.sleep", 1.0)
	wantErr(t, err, cohort.DeadlineExceeded)
}

// In PyTorch a creation is confirmed when its function has ended, so a slow function makes it time out. Here the
// confirmation comes first: the handle is good, and only the fetch runs out of time. A function is not cancelled because
// its result is not wanted any more, but the object goes.
func TestRemoteTimeout(t *testing.T) {
	w := start(t, 2)
	a := w.nodes[0].Agent
	ended, release := make(chan error, 1), make(chan struct{})
	w.nodes[1].reg.MustHandle("t.slow", func(ctx context.Context) (int, error) {
		var err error
		select {
		case <-release:
		case <-ctx.Done():
			err = ctx.Err()
		}
		ended <- err
		return 1, err
	})
	creation, cancel := context.WithTimeout(w.ctx, time.Second) // for a confirmation, which takes no time
	defer cancel()
	ref, err := rpc.Remote[int](creation, a, name(1), "t.slow")
	must(t, err)
	must(t, ref.Confirmed(w.ctx))
	<-creation.Done()
	_, err = ref.Fetch(within50ms(w.ctx, t))
	wantErr(t, err, cohort.DeadlineExceeded)
	must(t, ref.Close())
	close(release)
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(soon):
		t.Error("the function did not end")
	}
	testkit.Until(t, "the object goes", func() bool { return info(w.nodes[1], "owner_rrefs") == 0 })
	w.shutdown()
}

// Among Go workers a deadline travels: the callee's context ends with the caller's.
func TestDeadlineTravels(t *testing.T) {
	w := start(t, 2)
	ended := make(chan error, 2)
	w.nodes[1].reg.MustHandle("t.wait", func(ctx context.Context) error {
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	})
	_, err := rpc.Call[any](within50ms(w.ctx, t), w.nodes[0].Agent, name(1), "t.wait")
	wantErr(t, err, cohort.DeadlineExceeded)
	ctx, cancel := context.WithCancel(w.ctx)
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = rpc.Call[any](ctx, w.nodes[0].Agent, name(1), "t.wait")
	wantErr(t, err, cohort.Canceled)
	for range 2 {
		select {
		case <-ended:
		case <-time.After(soon):
			t.Fatal("the callee does not hear of it")
		}
	}
}
