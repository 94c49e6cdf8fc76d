// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import "testing"

// TestRefusalsAreBounded: the answers to refused requests wait up to a limit, and one goroutine writes them; then the peer is cut, once.
func TestRefusalsAreBounded(t *testing.T) {
	var q refusals
	c, answered := &Conn{}, 0
	answer := func() { answered++ }
	started := map[int]func(){}
	for i := range maxRefusals + 1000 {
		if start := q.queued(c, answer); start != nil {
			started[i] = start
		}
	}
	if len(started) != 2 || started[0] == nil || started[maxRefusals] == nil || len(q.mu.queue) != maxRefusals {
		t.Fatalf("%d goroutines were started, %d answers wait", len(started), len(q.mu.queue))
	}
	started[0]()
	if answered != maxRefusals || q.mu.running || len(q.mu.queue) != 0 {
		t.Errorf("%d were answered, %d wait, running: %v", answered, len(q.mu.queue), q.mu.running)
	}
	if q.queued(c, answer) == nil {
		t.Error("the next one gets no answer")
	}
}
