// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// TestOneErrorType: whatever fails, errors.As on *cohort.Error gives the operation, the code, the worker and the function or
// object, at the outermost error; what a function raised and why a reference is of no use are in its chain.
func TestOneErrorType(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		release := make(chan struct{})
		reg := NewRegistry().
			MustHandle("e.plain", func() error { return errors.New("just wrong") }).
			MustHandle("e.raise", func() (int, error) { return 0, Raise("ValueError", "bad %d", 7) }).
			MustHandle("e.one", func() int { return 1 }).
			MustHandle("e.wait", func() { <-release })
		agents := world(t, 2, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		short := func() context.Context {
			soon, cancel := context.WithTimeout(ctx, time.Millisecond)
			t.Cleanup(cancel)
			return soon
		}
		a := agents[0]
		for _, to := range []string{"w0", "w1"} {
			made := func(fn string) *Ref[int] {
				ref, err := Remote[int](ctx, a, to, fn)
				if err != nil {
					t.Fatal(err)
				}
				return ref
			}
			failed, closed := made("e.raise"), made("e.one")
			_ = closed.Close()
			for name, c := range map[string]struct {
				do     func() error
				code   cohort.Code
				raised string
				reason error
			}{
				"plain": {
					do: func() error { _, err := Call[int](ctx, a, to, "e.plain"); return err }, code: cohort.Remote,
					raised: "RuntimeError",
				},
				"raised": {
					do: func() error { _, err := Call[int](ctx, a, to, "e.raise"); return err }, code: cohort.Remote,
					raised: "ValueError",
				},
				"async": {
					do:   func() error { _, err := Async[int](ctx, a, to, "e.raise").Await(ctx); return err },
					code: cohort.Remote, raised: "ValueError",
				},
				"missing": {
					do: func() error { _, err := Call[int](ctx, a, to, "e.nothing"); return err }, code: cohort.NotFound,
					raised: "AttributeError",
				},
				"fetch":    {do: func() error { _, err := failed.Fetch(ctx); return err }, code: cohort.Remote, raised: "ValueError"},
				"closed":   {do: func() error { _, err := closed.Fetch(ctx); return err }, code: cohort.Closed, reason: ErrRefClosed},
				"deadline": {do: func() error { _, err := Call[any](short(), a, to, "e.wait"); return err }, code: cohort.DeadlineExceeded},
			} {
				err := c.do()
				e, ok := err.(*cohort.Error) //nolint:errorlint // the outermost one
				if !ok {
					t.Errorf("%s at %s: a %T: %v", name, to, err, err)
					continue
				}
				if e.Code != c.code || !errors.Is(err, c.code) || e.Peer != to || e.Op == "" || e.Key == "" ||
					cohort.CodeOf(err) != c.code {
					t.Errorf("%s at %s: %+v", name, to, e)
				}
				remote, isRemote := errors.AsType[*RemoteError](err)
				if isRemote != (c.raised != "") || isRemote &&
					(remote.Kind != c.raised || remote.Worker != to || remote.Code != c.code || !errors.Is(err, cohort.Remote)) {
					t.Errorf("%s at %s: the cause is %#v", name, to, remote)
				}
				if c.reason != nil && !errors.Is(err, c.reason) {
					t.Errorf("%s at %s: the reason is missing in %v", name, to, err)
				}
			}
			_ = failed.Close()
		}
		close(release)
		shutdown(t, agents)
	})
}

// A creation that its caller cancelled did not time out.
func TestCancelledCreation(t *testing.T) {
	for cause, want := range map[cohort.Code]Reason{cohort.Canceled: ErrCanceled, cohort.DeadlineExceeded: ErrCreateTimeout} {
		err := reasonError("use", "ref", "w1", ErrCreateTimeout, cohort.New("rpc: remote", cause, "given up"))
		if err.Code != cause || !errors.Is(err, want) || !strings.Contains(err.Error(), want.String()) {
			t.Errorf("given up with %v: %v", cause, err)
		}
	}
}
