// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"encoding/json"
	"sync"
)

// Questions are those of one launcher to all others, through the host. The zero value is ready to use.
type Questions struct {
	mu struct {
		sync.Mutex
		last    int
		waiting map[int]chan json.RawMessage
	}
}

// Ask makes a question to a number of nodes and returns where their answers arrive, until it is forgotten.
func (q *Questions) Ask(nodes int) (id int, answers <-chan json.RawMessage, forget func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.waiting == nil {
		q.mu.waiting = map[int]chan json.RawMessage{}
	}
	q.mu.last++
	id = q.mu.last
	ch := make(chan json.RawMessage, nodes)
	q.mu.waiting[id] = ch
	return id, ch, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.mu.waiting, id)
	}
}

// Answered takes an answer of a node. One too many is dropped.
func (q *Questions) Answered(m *Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch := q.mu.waiting[m.ID]; ch != nil {
		select {
		case ch <- m.Job:
		default: // a node that answers twice
		}
	}
}
