// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// reserving joins two ranks and calls f while the first one reserves memory for its arena. It returns the error of Alloc.
func reserving(t *testing.T, change func(*Config), f func(e *Engine)) error {
	t.Helper()
	e := world(t, 2, change)[0]
	kernel := e.arena.reserve
	e.arena.reserve = func(from, size int) error {
		f(e)
		return kernel(from, size)
	}
	s, err := e.Alloc(100)
	if err == nil {
		s.Release()
	}
	return err
}

// within reports whether f returns soon.
func within(f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(2 * time.Second):
		return false
	}
}

// The kernel may take seconds to reserve memory. A rank that waits for it shows that it lives.
func TestHeartbeatsGoOnDuringAlloc(t *testing.T) {
	t.Parallel()
	lost := make(chan transport.Loss, 4)
	err := reserving(t, func(c *Config) {
		c.HeartbeatLimit, c.OnLost = 500*time.Millisecond, func(l transport.Loss) { lost <- l }
	}, func(e *Engine) {
		beats := &e.seg.life(e.rank).beats
		first := atomic.LoadUint64(beats)
		for end := time.Now().Add(10 * time.Second); atomic.LoadUint64(beats) < first+10; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("no heartbeats")
				return
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	select {
	case l := <-lost:
		t.Error(l.Err)
	default:
	}
}

func TestFailDuringAlloc(t *testing.T) {
	t.Parallel()
	err := reserving(t, nil, func(e *Engine) {
		if !within(func() { e.Fail(errors.New("enough")) }) {
			t.Error("Fail waits for Alloc")
		}
	})
	if err != nil { // memory does not depend on the group
		t.Error(err)
	}
}

func TestCloseDuringAlloc(t *testing.T) {
	t.Parallel()
	var closed *Engine
	err := reserving(t, nil, func(e *Engine) {
		closed = e
		if !within(func() { _ = e.Close() }) {
			t.Error("Close waits for Alloc")
		}
	})
	if !errors.Is(err, cohort.Closed) {
		t.Error(err)
	}
	if closed.arena.mu.seg != nil {
		t.Error("the segment is still mapped")
	}
}
