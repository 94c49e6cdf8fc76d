// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package background

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: a clock ticks fast while it finds unattended work, less often while things are posted, seldom while they only last,
// and not at all when nothing is pending.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		defer c.Close()
		var posted, ticks atomic.Uint64
		var pending, alone atomic.Bool
		task := &Task{Tick: func(time.Time) State { ticks.Add(1); return State{pending.Load(), posted.Load(), alone.Load()} }}
		in := func(d time.Duration) uint64 {
			before := ticks.Load()
			time.Sleep(d)
			synctest.Wait()
			return ticks.Load() - before
		}
		if n := in(time.Second); n != 0 {
			t.Errorf("%d ticks without a task", n)
		}
		pending.Store(true)
		posted.Add(1)
		c.Watch(task)
		if n := in(20 * time.Millisecond); n < 4 || n > 6 { // after 1, 2, 4, 8 and 16 ms, give or take the first
			t.Errorf("%d ticks in 20 ms after a post", n)
		}
		if n := in(10 * time.Second); n < 60 || n > 100 {
			t.Errorf("%d ticks in 10 s of a task that only lasts", n)
		}
		posted.Add(1)
		c.Watch(task)
		if n := in(20 * time.Millisecond); n < 4 {
			t.Errorf("%d ticks in 20 ms after another post", n)
		}
		busy := func(d time.Duration) uint64 { // posts all the time
			before := ticks.Load()
			for range d / (100 * time.Microsecond) {
				posted.Add(1)
				c.Watch(task)
				time.Sleep(100 * time.Microsecond)
			}
			return ticks.Load() - before
		}
		busy(100 * time.Millisecond)
		if n := busy(time.Second); n < 50 || n > 70 {
			t.Errorf("%d ticks in 1 s of attended posts", n)
		}
		alone.Store(true)
		time.Sleep(maxIdleInterval)
		if n := busy(time.Second); n < 900 || n > 1100 {
			t.Errorf("%d ticks in 1 s of unattended posts", n)
		}
		alone.Store(false)
		pending.Store(false)
		time.Sleep(time.Second)
		if n := in(10 * time.Second); n != 0 {
			t.Errorf("%d ticks when nothing is pending", n)
		}
	})
}

// TestPostDuringATick: what is posted while the clock polls, after the task has reported that it is idle, is not forgotten.
func TestPostDuringATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		defer c.Close()
		var late atomic.Bool
		seen := make(chan struct{})
		var task *Task
		task = &Task{Tick: func(time.Time) State {
			if late.CompareAndSwap(false, true) {
				c.Watch(task) // as if another goroutine posted something at this moment
				return State{}
			}
			select {
			case <-seen:
			default:
				close(seen)
			}
			return State{}
		}}
		c.Watch(task)
		<-seen // the test hangs, and fails, if the post is forgotten
	})
}

// TestPostBehindATick: what is posted to one task while the clock polls another one, having seen this one, is seen within maxIdleInterval.
func TestPostBehindATick(t *testing.T) {
	for posts := range 100 { // the clock polls the tasks in any order
		synctest.Test(t, func(t *testing.T) {
			c := New()
			defer c.Close()
			var posted [2]time.Time
			var seen [2]int
			tasks := [2]*Task{}
			for i := range tasks {
				tasks[i] = &Task{Tick: func(now time.Time) State {
					seen[i]++
					if at := posted[i]; !at.IsZero() && now.Sub(at) > maxIdleInterval {
						t.Errorf("polled %v after the post", now.Sub(at))
					}
					posted[i] = time.Time{}
					if other := 1 - i; seen[i] == posts%10 && seen[other] == seen[i] { // that one had its turn
						posted[other] = now
						c.Watch(tasks[other])
					}
					return State{Pending: true}
				}}
			}
			for _, task := range tasks {
				c.Watch(task)
			}
			time.Sleep(time.Second)
		})
	}
}
