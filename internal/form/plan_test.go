// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort/internal/coll"
)

// TestBareStoreWithPrefix: PyTorch joins a prefix and its own keys with one slash.
func TestBareStoreWithPrefix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{}, "default_pg"},
		{Options{Prefix: "x"}, "x/default_pg"},
		{Options{BareStore: true}, ""},
		{Options{BareStore: true, Prefix: "x"}, "x"},
	} {
		p := &Plan{Options: c.opts}
		if got := p.torchBase(); got != c.want {
			t.Errorf("base %q, want %q", got, c.want)
		}
	}
}

// TestFailureBeforeAndAfter: a mesh that fails before the group hears of it says so as soon as it does.
func TestFailureBeforeAndAfter(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	var f Formed
	var heard []error
	f.failure.report(first)
	f.OnFail(func(err error) { heard = append(heard, err) })
	f.failure.report(second)
	if len(heard) != 2 || !errors.Is(heard[0], first) || !errors.Is(heard[1], second) {
		t.Error(heard)
	}
}

// TestUnconnected: a group that waits for its members can be failed and closed.
func TestUnconnected(t *testing.T) {
	t.Parallel()
	f := Unconnected(&Plan{Globals: []int{0, 1}, Options: Options{Transport: Auto}})
	if err := f.Engine.Run(t.Context(), &coll.Request{Kind: coll.Barrier}); err != nil {
		t.Error(err)
	}
	f.Fail(errors.New("ended"))
	if err := f.Close(); err != nil || f.GoRanks() != 0 {
		t.Error(err, f.GoRanks())
	}
}
