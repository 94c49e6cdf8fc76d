// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import "slices"

// Signals are those that the launcher has sent to a worker, each once.
type Signals struct {
	// Ending were to end it, Passed were sent to the launcher and only passed on.
	Ending, Passed []int
}

// Note notes a signal that is sent. A launcher may pass one on every minute for as long as the job runs.
func (s *Signals) Note(signal int, ending bool) {
	all := &s.Passed
	if ending {
		all = &s.Ending
	}
	if !slices.Contains(*all, signal) {
		*all = append(*all, signal)
	}
}

// stopped reports whether the launcher has sent a signal that was to end the worker.
func (s *Signals) stopped() bool { return len(s.Ending) > 0 }
