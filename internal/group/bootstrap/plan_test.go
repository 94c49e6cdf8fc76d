// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/store"
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

// TestFailureBeforeAndAfter: a mesh that fails before the group learns of it says so as soon as it does.
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
	if err := f.Engine.Run(t.Context(), &collective.Request{Kind: collective.Barrier}); err != nil {
		t.Error(err)
	}
	f.Fail(errors.New("ended"))
	if err := f.Close(); err != nil || f.GoRanks() != 0 {
		t.Error(err, f.GoRanks())
	}
}

// TestSaidPeers: what is said about the PyTorch ranks is checked before anything else.
func TestSaidPeers(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]torchcaps.Peers{
		"": {}, "go": {}, "torch-2.11": torchcaps.Exactly(torchcaps.V2_11),
		"torch-2.6,torch-2.14": {Low: torchcaps.V2_6, High: torchcaps.V2_14, Several: true},
	} {
		o := &Options{Transport: Auto, Peers: said}
		if err := o.Check("x"); err != nil || o.Said() != want {
			t.Errorf("%q: %v, %v", said, o.Said(), err)
		}
	}
	for said, want := range map[string]string{
		"torch-x": "torch-2.6,torch-2.14", "torch-2.6,go": "want go, or",
		"torch-1.13,torch-2.6": "cannot be in one group",
	} {
		if err := (&Options{Transport: Auto, Peers: said}).Check("x"); !errors.Is(err, cohort.InvalidArgument) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", said, err)
		}
	}
}

// TestTheCallersOwnEnd: an attempt is over because the caller's context has ended. That is what the caller is told, also where there is no
// other attempt.
func TestTheCallersOwnEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	for _, origin := range []Origin{FromPython, FromSplit, FromMerge, FromReconfigure} {
		p := &Plan{Origin: origin, Store: s}
		if err := p.failed(ctx, assemble.ErrAttemptAbandoned); !errors.Is(err, context.Canceled) {
			t.Errorf("origin %d: %v", origin, err)
		}
		if err := p.failed(t.Context(), assemble.ErrAttemptAbandoned); origin.once() != errors.Is(err, ErrGaveUp) {
			t.Errorf("origin %d, given up by another rank: %v", origin, err)
		}
	}
}

// TestNewerIsSaidOnce: a version that is newer than any that is known is worth one line in the log of a process, not one per
// group.
func TestNewerIsSaidOnce(t *testing.T) {
	version := "torch-3." + strconv.Itoa(rand.IntN(1_000_000_000))
	var log bytes.Buffer
	for range 3 { // three groups
		warnNewer(slog.New(slog.NewTextHandler(&log, nil)), version)
	}
	if n := strings.Count(log.String(), version); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, log.String())
	}
}
