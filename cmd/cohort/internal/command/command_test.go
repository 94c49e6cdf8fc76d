// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStoreAddr(t *testing.T) {
	none := func(string) string { return "" }
	job := func(name string) string {
		return map[string]string{"MASTER_ADDR": "node0", "MASTER_PORT": "1234"}[name]
	}
	for _, c := range []struct {
		addr   string
		getenv func(string) string
		want   string
	}{
		{"", none, "127.0.0.1:29500"},
		{"", job, "node0:1234"},
		{"h:1", job, "h:1"},
		{"h", none, "h:29500"},
		{":7", none, "127.0.0.1:7"},
		{"[::1]:7", none, "[::1]:7"},
		{"[::1]", none, "[::1]:29500"},
		{"::1", none, ""},
		{"a:b:c", none, ""},
	} {
		got, err := StoreAddr(c.addr, c.getenv)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: %q, %v; want %q", c.addr, got, err, c.want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), ExitFailure},
		{Usage(errors.New("x")), exitUsage},
		{fmt.Errorf("a: %w", cohort.DeadlineExceeded), exitTimeout},
		{context.DeadlineExceeded, exitTimeout},
		{cohort.New("x", cohort.NotFound, "y"), exitNotFound},
		{cohort.New("x", cohort.InvalidArgument, "y"), exitUsage},
		{cohort.New("x", cohort.PeerLost, "y"), ExitFailure},
		{markUnreachable(fmt.Errorf("a: %w", cohort.DeadlineExceeded)), exitNoStore},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: exit %d, want %d", c.err, got, c.want)
		}
	}
}

func TestASignalIsNoTimeout(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := Explain(ctx, cohort.DeadlineExceeded); !errors.Is(err, cohort.DeadlineExceeded) {
		t.Error(err)
	}
	cancel(SignalError{})
	if err := Explain(ctx, cohort.Canceled); err == nil || err.Error() != "interrupted by SIGTERM" {
		t.Error(err)
	}
	if err := Explain(ctx, nil); err != nil {
		t.Error(err)
	}
}
