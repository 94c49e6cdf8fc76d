// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ticker looks after work that nobody waits for. Waking a goroutine for every operation of a group would cost more than
// a small operation takes, so as long as the program waits for each operation itself, only a clock ticks beside it.
package ticker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/moment"
)

// Ticks start fast and become seldom while nothing new is posted.
const (
	Fast = time.Millisecond
	Slow = 128 * time.Millisecond
)

// Task is what a clock looks at.
type Task struct {
	// Tick is called while the task is watched. It reports whether anything is pending, and a count that changes with everything
	// that is posted.
	Tick func(now time.Time) (pending bool, posted uint64)

	watched atomic.Bool
}

// Clock looks at the tasks that it was told to watch, until nothing of them is pending.
type Clock struct {
	wake chan struct{}
	stop chan struct{}
	done sync.WaitGroup
	fast atomic.Bool // it will tick soon

	mu struct {
		sync.Mutex
		tasks map[*Task]uint64 // to what was posted when it was looked at last
	}
}

// New starts a clock.
func New() *Clock {
	c := &Clock{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	c.mu.tasks = map[*Task]uint64{}
	c.done.Go(c.run)
	return c
}

// Watch makes the clock look at a task until nothing of it is pending.
func (c *Clock) Watch(t *Task) {
	if c.fast.Load() && t.watched.Load() {
		return
	}
	moment.At("ticker.watch")
	c.mu.Lock()
	if _, ok := c.mu.tasks[t]; !ok {
		c.mu.tasks[t] = 0
	}
	t.watched.Store(true)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Close ends the clock. No task is looked at any more when it returns.
func (c *Clock) Close() {
	close(c.stop)
	c.done.Wait()
}

func (c *Clock) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	interval := Fast
	for {
		c.mu.Lock()
		idle := len(c.mu.tasks) == 0
		c.mu.Unlock()
		if idle {
			c.fast.Store(false)
			select {
			case <-c.wake:
			case <-c.stop:
				return
			}
			interval = Fast
		}
		c.fast.Store(interval == Fast)
		timer.Reset(interval)
		select {
		case <-timer.C:
		case <-c.wake:
			interval = Fast
			continue
		case <-c.stop:
			return
		}
		if c.tick() {
			interval = Fast
		} else {
			interval = min(2*interval, Slow)
		}
	}
}

// tick looks at all tasks and reports whether anything was posted since the last time.
func (c *Clock) tick() bool {
	now := time.Now()
	c.mu.Lock()
	tasks := make([]*Task, 0, len(c.mu.tasks))
	for t := range c.mu.tasks {
		tasks = append(tasks, t)
	}
	c.mu.Unlock()
	news := false
	for _, t := range tasks {
		t.watched.Store(false) // a post from here on has it watched again
		moment.At("ticker.tick")
		pending, posted := t.Tick(now)
		c.mu.Lock()
		fresh := c.mu.tasks[t] != posted
		c.mu.tasks[t] = posted
		news = news || fresh
		if pending || fresh || t.watched.Load() { // one that was busy just now stays for a tick more
			t.watched.Store(true)
		} else {
			delete(c.mu.tasks, t)
		}
		c.mu.Unlock()
	}
	return news
}
