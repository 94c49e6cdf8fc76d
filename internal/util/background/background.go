// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package background drives work that no goroutine waits for. Waking a goroutine for every operation of a group would cost more than
// a small operation takes, so as long as the program waits for each operation itself, only a clock ticks beside it.
package background

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

const (
	// Fast is the time between ticks at first, and after one that found unattended work.
	Fast = time.Millisecond
	// maxIdleInterval is the longest time between ticks while things are posted.
	maxIdleInterval = 16 * time.Millisecond
	// slow is the longest time between ticks while nothing new is posted.
	slow = 128 * time.Millisecond
)

// State is what a clock finds when it polls a task.
type State struct {
	Pending    bool   // something is not over
	Posted     uint64 // a count that changes with everything that is posted
	Unattended bool   // something was found that no goroutine works on
}

// Task is what a clock polls.
type Task struct {
	// Tick is called while the task is watched.
	Tick func(now time.Time) State

	watched atomic.Bool
}

// Clock polls the tasks that it watches, until nothing of them is pending.
type Clock struct {
	wake chan struct{}
	stop chan struct{}
	done sync.WaitGroup
	fast atomic.Bool // it ticks within maxIdleInterval

	mu struct {
		sync.Mutex
		tasks map[*Task]uint64 // to what was posted when it was polled last
	}
}

// New starts a clock.
func New() *Clock {
	c := &Clock{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	c.mu.tasks = map[*Task]uint64{}
	c.done.Go(c.run)
	return c
}

// Watch makes the clock poll a task until nothing of it is pending.
func (c *Clock) Watch(t *Task) {
	if c.fast.Load() && t.watched.Load() {
		return
	}
	failpoint.At("background.watch")
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

// Close ends the clock. No task is polled any more when it returns.
func (c *Clock) Close() {
	close(c.stop)
	c.done.Wait()
}

func (c *Clock) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	interval := NewInterval(Fast)
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
			interval.Reset()
		}
		pause := interval.Now()
		if c.fast.Swap(pause <= maxIdleInterval) {
			pause = min(pause, maxIdleInterval) // a task may have been posted since the last tick without a wake-up
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-c.wake:
			interval.Reset()
			continue
		case <-c.stop:
			return
		}
		switch news, alone := c.tick(); {
		case alone:
			interval.Reset()
		case news:
			interval.Grow(maxIdleInterval)
		default:
			interval.Grow(slow)
		}
	}
}

// tick polls all tasks and reports whether anything was posted since the last time, and whether anything was found that no
// goroutine works on.
func (c *Clock) tick() (news, alone bool) {
	now := time.Now()
	c.mu.Lock()
	tasks := make([]*Task, 0, len(c.mu.tasks))
	for t := range c.mu.tasks {
		tasks = append(tasks, t)
	}
	c.mu.Unlock()
	for _, t := range tasks {
		t.watched.Store(false) // a post from here on has it watched again
		failpoint.At("background.tick")
		state := t.Tick(now)
		c.mu.Lock()
		fresh := c.mu.tasks[t] != state.Posted
		c.mu.tasks[t] = state.Posted
		news, alone = news || fresh, alone || state.Unattended
		if state.Pending || fresh || t.watched.Load() { // one that was busy just now stays for a tick more
			t.watched.Store(true)
		} else {
			delete(c.mu.tasks, t)
		}
		c.mu.Unlock()
	}
	return news, alone
}

// Interval is the time between two polls of work that usually another goroutine does. It doubles with each poll that finds
// nothing to do, because each wakes a thread, for which a rank has to leave its core when cores are scarce. So unattended work waits for
// it no longer than all was attended before. The zero value is not usable; see [NewInterval].
type Interval struct{ least, now time.Duration }

// NewInterval returns an interval that is never shorter than least.
func NewInterval(least time.Duration) Interval { return Interval{least, least} }

// Now is the interval.
func (i *Interval) Now() time.Duration { return i.now }

// Reset makes the interval short again: a poll has found something to do.
func (i *Interval) Reset() { i.now = i.least }

// Grow doubles the interval, up to most, after a poll that has found nothing.
func (i *Interval) Grow(most time.Duration) { i.now = max(i.least, min(2*i.now, most)) }
