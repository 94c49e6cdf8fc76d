// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"log/slog"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// maxRefusals is how many requests of a peer may wait for the answer that they were refused. A peer that sends more of
// them and does not read the answers loses its connection.
const maxRefusals = 4096

// refusals are the answers to refused requests of one session that have not been written. One goroutine writes them, however
// many there are, so that bad requests cost no goroutine each; it ends when there are none.
type refusals struct {
	mu struct {
		sync.Mutex
		queue   []func()
		running bool
		cut     bool
	}
}

// Add queues an answer. It does not block.
func (q *refusals) Add(c *Conn, answer func()) {
	failpoint.At("rpc.refusals.add")
	if next := q.queued(c, answer); next != nil {
		c.net.Background(next)
	}
}

// queued queues an answer, and returns what has to be started for it.
func (q *refusals) queued(c *Conn, answer func()) (start func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.mu.queue) < maxRefusals:
		q.mu.queue = append(q.mu.queue, answer)
		if !q.mu.running {
			start, q.mu.running = q.drain, true
		}
	case !q.mu.cut:
		start, q.mu.cut = c.cut, true
	}
	return start
}

func (q *refusals) drain() {
	for {
		failpoint.At("rpc.refusals.drain")
		q.mu.Lock()
		all := q.mu.queue
		q.mu.queue = nil
		q.mu.running = len(all) > 0
		q.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for _, answer := range all {
			answer()
		}
	}
}

// cut ends the session with a peer that does not read.
func (c *Conn) cut() {
	err := cohort.Newf("rpc: request", cohort.Exhausted, "%d requests were refused and the peer does not read why", maxRefusals)
	c.net.cfg.Logger.Warn("connection cut", slog.String("peer", c.Peer().Name), slog.String("err", err.Error()))
	if c.Link != nil {
		_ = c.Link.Close()
		return
	}
	_ = c.Pipe.Close()
}
