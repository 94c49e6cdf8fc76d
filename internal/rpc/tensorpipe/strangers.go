// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// strangers are the arrived connections whose handshake is not done. There is a bound, and at the bound somebody has to go:
// the host with the most of them loses its oldest one, rather one that has not said who it is. A real worker says that at
// once, so many half hellos cost their own host its places and keep nobody out.
type strangers struct {
	limit int

	mu struct {
		sync.Mutex
		list  []*stranger // oldest first
		hosts map[string]int
	}
}

type stranger struct {
	conn    net.Conn
	host    string
	came    time.Time
	greeted bool // its hello was complete; guarded by the lock
}

func newStrangers(limit int) *strangers {
	s := &strangers{limit: limit}
	s.mu.hosts = map[string]int{}
	return s
}

func hostOf(conn net.Conn) string {
	addr := conn.RemoteAddr()
	if addr == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

// admit notes a connection. It returns the one that has to go for it, or nil.
func (s *strangers) admit(conn net.Conn) (added, evicted *stranger) {
	added = &stranger{conn: conn, host: hostOf(conn), came: time.Now()}
	failpoint.At("tensorpipe.strangers.admit")
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.list) >= s.limit {
		evicted = s.victim()
		s.remove(evicted)
	}
	s.mu.list = append(s.mu.list, added)
	s.mu.hosts[added.host]++
	return added, evicted
}

// victim returns whom to give up. Called with the lock.
func (s *strangers) victim() (worst *stranger) {
	worse := func(a, b *stranger) bool {
		if x, y := s.mu.hosts[a.host], s.mu.hosts[b.host]; x != y {
			return x > y
		}
		return !a.greeted && b.greeted
	}
	for _, x := range s.mu.list { // of equals the oldest
		if worst == nil || worse(x, worst) {
			worst = x
		}
	}
	return worst
}

// remove forgets a connection. Called with the lock.
func (s *strangers) remove(x *stranger) {
	for i, y := range s.mu.list {
		if x != y {
			continue
		}
		s.mu.list = append(s.mu.list[:i], s.mu.list[i+1:]...)
		if s.mu.hosts[x.host]--; s.mu.hosts[x.host] == 0 {
			delete(s.mu.hosts, x.host)
		}
		return
	}
}

func (s *strangers) greeted(x *stranger) {
	failpoint.At("tensorpipe.strangers.greeted")
	s.mu.Lock()
	defer s.mu.Unlock()
	x.greeted = true
}

// leave forgets a connection whose handshake is done or has failed.
func (s *strangers) leave(x *stranger) {
	failpoint.At("tensorpipe.strangers.leave")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(x)
}

// complaints logs why connections were refused, at most one line a second: strangers do not fill the log.
type complaints struct {
	logger *slog.Logger

	mu struct {
		sync.Mutex
		last    time.Time
		skipped int
	}
}

func (c *complaints) dropped(conn net.Conn, err error) {
	c.mu.Lock()
	now := time.Now()
	if now.Sub(c.mu.last) < time.Second {
		c.mu.skipped++
		c.mu.Unlock()
		return
	}
	skipped := c.mu.skipped
	c.mu.last, c.mu.skipped = now, 0
	c.mu.Unlock()
	c.logger.Warn("connection dropped in its handshake", slog.String("peer", conn.RemoteAddr().String()), slog.String("err", err.Error()), slog.Int("not_logged", skipped))
}
