// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpclink

import (
	"log/slog"
	"sync"

	"github.com/cohort-dist/cohort/dist"
)

// maxRefusals is how many requests of a peer may wait for the answer that they were refused. A peer that sends more of
// them and does not read what it is told loses its connection.
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
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.queue) >= maxRefusals {
		if !q.mu.cut {
			q.mu.cut = true
			c.net.Background(c.cut)
		}
		return
	}
	q.mu.queue = append(q.mu.queue, answer)
	if !q.mu.running {
		q.mu.running = true
		c.net.Background(q.drain)
	}
}

func (q *refusals) drain() {
	for {
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
	err := dist.Newf("rpc: request", dist.Exhausted, "%d requests were refused and the peer does not read why", maxRefusals)
	c.net.cfg.Logger.Warn("connection cut", slog.String("peer", c.Peer().Name), slog.String("err", err.Error()))
	if c.Link != nil {
		_ = c.Link.Close()
		return
	}
	_ = c.Pipe.Close()
}
