// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock looks after operations that nobody waits for. Waking a goroutine for every operation would cost more than a small
// operation takes, so as long as the program waits for each operation itself, only this clock ticks beside it.
type clock struct {
	wake chan struct{}
	stop chan struct{}
	done sync.WaitGroup
	fast atomic.Bool // it will tick soon

	mu struct {
		sync.Mutex
		groups map[*Group]*watched
	}
}

type watched struct{ tag, messages uint64 }

// Ticks start fast and become seldom while nothing new is posted.
const (
	fastTick = time.Millisecond
	slowTick = 128 * time.Millisecond
)

func newClock() *clock {
	c := &clock{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	c.mu.groups = map[*Group]*watched{}
	c.done.Add(1)
	go c.run()
	return c
}

// watch makes the clock tick for a group until nothing of it is pending.
func (c *clock) watch(g *Group) {
	if c.fast.Load() && g.watched.Load() {
		return
	}
	c.mu.Lock()
	if _, ok := c.mu.groups[g]; !ok {
		c.mu.groups[g] = &watched{}
	}
	g.watched.Store(true)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *clock) close() {
	close(c.stop)
	c.done.Wait()
}

func (c *clock) run() {
	defer c.done.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	interval := fastTick
	for {
		c.mu.Lock()
		idle := len(c.mu.groups) == 0
		c.mu.Unlock()
		if idle {
			c.fast.Store(false)
			select {
			case <-c.wake:
			case <-c.stop:
				return
			}
			interval = fastTick
		}
		c.fast.Store(interval == fastTick)
		timer.Reset(interval)
		select {
		case <-timer.C:
		case <-c.wake:
			interval = fastTick
			continue
		case <-c.stop:
			return
		}
		if c.tick() {
			interval = fastTick
		} else {
			interval = min(2*interval, slowTick)
		}
	}
}

// tick looks at all groups and reports whether anything was posted since the last time.
func (c *clock) tick() bool {
	now := time.Now()
	c.mu.Lock()
	groups := make([]*Group, 0, len(c.mu.groups))
	for g := range c.mu.groups {
		groups = append(groups, g)
	}
	c.mu.Unlock()
	news := false
	for _, g := range groups {
		g.watched.Store(false) // a post from here on enters the group again
		more, tag, messages := g.tick(now)
		c.mu.Lock()
		w := c.mu.groups[g]
		if w.tag != tag || w.messages != messages {
			w.tag, w.messages = tag, messages
			news = true
		}
		switch {
		case more || g.watched.Load():
			g.watched.Store(true)
		case !news:
			delete(c.mu.groups, g)
		default:
			g.watched.Store(true) // it was busy just now: stay for a tick more
		}
		c.mu.Unlock()
	}
	return news
}
