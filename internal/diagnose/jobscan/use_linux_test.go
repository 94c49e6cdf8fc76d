// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"testing"
	"time"
)

// TestSlept: a thread that sleeps between short looks is told from one that computes, in whatever state it is at one moment.
func TestSlept(t *testing.T) {
	t.Parallel()
	if useOf(1, 1).wanted == 0 {
		t.Skip("this kernel does not tell for how long threads have run")
	}
	for program, want := range map[string]bool{
		"while true; do read -t 0.1 line <> <(:); done": true,
		"while true; do :; done":                        false,
	} {
		pid := running(t, 1, "bash", "-c", "echo ready; "+program)
		got := !want
		for limit := time.Now().Add(time.Minute); got != want && time.Now().Before(limit); {
			before := useOf(pid, pid)
			time.Sleep(500 * time.Millisecond)
			got = slept(before, useOf(pid, pid))
		}
		if got != want {
			t.Errorf("%s: slept: %v", program, got)
		}
	}
	now := time.Now()
	for _, c := range []struct {
		before, after use
		want          bool
	}{
		{use{1, time.Second, now}, use{1, time.Second, now.Add(time.Second)}, true},
		{use{1, time.Second, now}, use{1, 1500 * time.Millisecond, now.Add(time.Second)}, false},
		{use{1, time.Second, now}, use{2, time.Second, now.Add(time.Second)}, false},
		{use{1, 0, now}, use{1, 0, now.Add(time.Second)}, false},
		{use{1, time.Second, now}, use{1, time.Second, now.Add(time.Millisecond)}, false},
	} {
		if got := slept(c.before, c.after); got != c.want {
			t.Errorf("%+v, %+v: %v", c.before, c.after, got)
		}
	}
}
