// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/launch/joblog"
)

// TestDrainOfStreamsThatStayOpen: an attempt ends although processes that it cannot reach have the streams of several workers open.
func TestDrainOfStreamsThatStayOpen(t *testing.T) {
	t.Parallel()
	a := &attempt{job: &Job{screen: &screen{}}}
	for range 2 {
		var w worker
		for _, p := range []**joblog.Pipe{&w.out, &w.err} {
			made, err := joblog.NewPipe(nil, false)
			if err != nil {
				t.Fatal(err)
			}
			held, err := unix.Dup(int(made.Worker().Fd())) // by a process that the launcher does not know
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(held) })
			made.Start(&joblog.Stream{})
			*p = made
		}
		a.workers = append(a.workers, &w)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.drain()
	}()
	select {
	case <-done:
	case <-time.After(5 * drainTime):
		t.Fatal("it still waits for the streams")
	}
}
