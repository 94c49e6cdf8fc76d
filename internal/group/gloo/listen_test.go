// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// starved is a listener of a process that has no descriptors left.
type starved struct{ net.Listener }

func (starved) Accept() (net.Conn, error) {
	return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
}
func (starved) Close() error { return nil }

// TestAcceptProblemOfAListener: a rank that cannot take connections reports that, instead of only naming those that it waits for.
func TestAcceptProblemOfAListener(t *testing.T) {
	d := newDevice(&Config{Rank: 0, Size: 2, Logger: slog.New(slog.DiscardHandler)}, 0, "")
	d.startListener(starved{})
	testkit.Until(t, "an attempt to accept", func() bool { return d.listener.acceptProblem() != "" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := d.missing(ctx, d.pairs[1:])
	if !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "cannot take connections: accept: too many open files") {
		t.Errorf("the error is %v", err)
	}
	d.end()
	d.wg.Wait()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	d.listener.admit(ours)
	if text := d.listener.acceptProblem(); text != "" {
		t.Errorf("it has taken one, and reports %q", text)
	}
	_ = ours.Close()
	if text := (*listener)(nil).acceptProblem(); text != "" {
		t.Errorf("without a listener: %q", text)
	}
}
