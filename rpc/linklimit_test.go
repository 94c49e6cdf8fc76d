// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
)

// swallowing is a connection that accepts everything and, once switched, passes nothing on.
type swallowing struct {
	net.Conn
	on *atomic.Bool
}

func (s swallowing) Write(p []byte) (int, error) {
	if s.on.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// silentLink makes a link that falls silent for a while, and returns after how long both its ends have given it up: forever if they do not.
func silentLink(t *testing.T, heartbeat, lease, pause time.Duration) time.Duration {
	t.Helper()
	var silent atomic.Bool
	a, b := net.Pipe()
	var links [2]*cohortwire.Link
	var starts sync.WaitGroup
	for i, conn := range []net.Conn{a, b} {
		starts.Go(func() {
			cfg := cohortwire.Config{
				Identity: cohortwire.Identity{Name: "ab"[i : i+1], ID: int16(i), Incarnation: 1}, Dialled: i == 0,
				OnFrame: func(*cohortwire.Link, *cohortwire.Frame) {}, Heartbeat: heartbeat, Limit: linkLimit(heartbeat, lease),
			}
			var err error
			if links[i], err = cohortwire.Start(swallowing{conn, &silent}, nil, cfg); err != nil {
				t.Error(err)
			}
		})
	}
	if starts.Wait(); t.Failed() {
		t.FailNow()
	}
	defer func() { _ = links[0].Close(); _ = links[1].Close() }()
	time.Sleep(100*heartbeat + heartbeat/3)
	begun := time.Now()
	silent.Store(true)
	time.AfterFunc(pause, func() { silent.Store(false) })
	for _, l := range links {
		select {
		case <-l.Done():
		case <-time.After(forever):
			return forever
		}
	}
	return time.Since(begun)
}

const forever = time.Hour

// TestSilentLinkLeavesTime: a link that falls silent is given up so early that a good part of a lease is left to
// connect again, if heartbeats are short. A link on which nothing comes for two fifths of a lease is not: workers stand
// still on a busy machine.
func TestSilentLinkLeavesTime(t *testing.T) {
	const lease = 10 * time.Second
	for _, c := range []struct{ heartbeat, latest time.Duration }{
		{lease / 20, lease * 6 / 10},
		{lease / 10, lease * 2 / 3}, // the default
		{lease / 4, lease * 3 / 4},
		{lease / 2, lease * 3 / 2}, // as short as a lease can be: nothing is left
	} {
		synctest.Test(t, func(t *testing.T) {
			if after := silentLink(t, c.heartbeat, lease, forever); after < lease*2/5 || after > c.latest {
				t.Errorf("heartbeat %v, lease %v: given up after %v", c.heartbeat, lease, after)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			if after := silentLink(t, c.heartbeat, lease, lease*2/5); after != forever {
				t.Errorf("heartbeat %v, lease %v: given up after %v", c.heartbeat, lease, after)
			}
		})
	}
}
