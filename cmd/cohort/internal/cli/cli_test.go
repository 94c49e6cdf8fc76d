// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == command.SupervisorName { // a launcher under test has started this program again
		os.Exit(Main(os.Args[1:], System()))
	}
	goleak.VerifyTestMain(m)
}

func TestSameStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"node1:29500", "node1:29500", true},
		{"127.0.0.1:29500", "localhost:29500", true},
		{"[::1]:29500", "127.0.0.1:29500", true},
		{"127.0.0.1:29500", "localhost:29501", false},
		{"node1:29500", "localhost:29500", false},
		{"127.0.0.1:29500", "29500", false},
	} {
		if got := sameStore(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
}
