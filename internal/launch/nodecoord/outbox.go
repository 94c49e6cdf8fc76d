// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"sync"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

const (
	// maxOwn bounds the host's own messages to a node that does not read.
	maxOwn = 64
	// maxAnswers bounds the bytes of other nodes' answers to a node that does not read.
	maxAnswers = 64 << 20
)

// outbox holds what the host has for a node until it is written. Its own messages are first and in order. Then follow other
// nodes' answers to a question of this one, of which there may be as many as nodes, and the latest view.
type outbox struct {
	ready chan struct{} // has room for one: something was put, or the box was closed
	mu    struct {
		sync.Mutex
		own, answers []Message
		bytes        int // of the answers
		view         *View
		closed       bool
	}
}

func newOutbox() *outbox { return &outbox{ready: make(chan struct{}, 1)} }

func (o *outbox) wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// put queues a message of the host's own. It reports false if too many wait.
func (o *outbox) put(m Message) bool {
	failpoint.At("nodecoord.outbox.lock")
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.mu.own) >= maxOwn {
		return false
	}
	o.mu.own = append(o.mu.own, m)
	o.wake()
	return true
}

// answer queues another node's answer, or drops it if too much waits: the node that asked does not wait for ever.
func (o *outbox) answer(m Message) {
	failpoint.At("nodecoord.outbox.lock")
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.bytes += len(m.Seen.Job); o.mu.bytes > maxAnswers {
		o.mu.bytes -= len(m.Seen.Job)
		return
	}
	o.mu.answers = append(o.mu.answers, m)
	o.wake()
}

// show replaces the view.
func (o *outbox) show(v *View) {
	failpoint.At("nodecoord.outbox.lock")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.view = v
	o.wake()
}

// close says that no more messages follow.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.closed = true
	o.wake()
}

// next takes the next message. ok is false if there is none, closed then says whether there will be one.
func (o *outbox) next() (m Message, ok, closed bool) {
	failpoint.At("nodecoord.outbox.lock")
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.mu.own) > 0:
		m, o.mu.own = o.mu.own[0], o.mu.own[1:]
	case o.mu.closed: // the rest is of no use any more
		return m, false, true
	case len(o.mu.answers) > 0:
		m, o.mu.answers = o.mu.answers[0], o.mu.answers[1:]
		o.mu.bytes -= len(m.Seen.Job)
	case o.mu.view != nil:
		m.View, o.mu.view = o.mu.view, nil
	default:
		return m, false, false
	}
	return m, true, false
}
