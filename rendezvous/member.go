// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// Member is this process's place in a world: the store that all ranks share, its rank and the number of ranks.
//
// It corresponds to the triple that torch.distributed.rendezvous yields.
type Member struct {
	store   store.Store
	rank    cohort.Rank
	size    int
	release Release

	mu    sync.Mutex
	ended chan struct{} // set by the call that ends the Member, closed when that is done
	err   error

	closing sync.Once // its second caller waits for the first
}

// Release ends a Member. If Shutdown is nil, Close is called in its place; if Close is nil, the store is closed.
type Release struct {
	// Shutdown leaves in order: a process that hosts something stays until the others have left or ctx ends.
	Shutdown func(ctx context.Context) error
	// Close ends everything at once. It is called once, also while Shutdown waits, which it must end.
	Close func() error
}

// NewMember returns a Member. Handlers of user-registered schemes call it.
func NewMember(s store.Store, rank cohort.Rank, size int, release Release) *Member {
	if release.Close == nil {
		release.Close = s.Close
	}
	return &Member{store: s, rank: rank, size: size, release: release}
}

// Store returns the store that all ranks share.
func (m *Member) Store() store.Store { return m.store }

// Rank returns the number of this process in the world.
func (m *Member) Rank() cohort.Rank { return m.rank }

// Size returns the number of ranks, or NoWorldSize in an open world.
func (m *Member) Size() int { return m.size }

// Shutdown leaves the world in order. The process that hosts the store stays until every other client has disconnected or
// ctx ends; then everything is closed in any case. The error says whether clients were cut off. Shutdown after Close, or
// a second Shutdown, waits for the first call, as long as its own ctx allows, and returns its result.
func (m *Member) Shutdown(ctx context.Context) error {
	ended, first := m.begin()
	if !first {
		select {
		case <-ended:
			return m.result()
		case <-ctx.Done():
			return cohort.FromContext(ctx, "rendezvous: shutdown")
		}
	}
	var err error
	if m.release.Shutdown != nil {
		err = m.release.Shutdown(ctx)
	}
	m.finish(err)
	return m.result()
}

// Close ends the membership at once: it closes the store and, in the process that hosts it, the server. It is idempotent,
// ends a Shutdown that still waits, and returns when all goroutines have ended.
func (m *Member) Close() error {
	ended, first := m.begin()
	if !first {
		m.closeOnce()
		<-ended
		return m.result()
	}
	m.finish(nil)
	return m.result()
}

// begin makes the caller the one that ends the Member, if there is none yet.
func (m *Member) begin() (ended chan struct{}, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return m.ended, false
	}
	m.ended = make(chan struct{})
	return m.ended, true
}

func (m *Member) finish(err error) {
	m.note(err)
	m.closeOnce()
	close(m.ended)
}

func (m *Member) closeOnce() {
	m.closing.Do(func() {
		if m.release.Close != nil {
			m.note(m.release.Close())
		}
	})
}

// note keeps the first error.
func (m *Member) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}

func (m *Member) result() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
