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

// unidentified are the arrived connections in their handshake. There is a bound, and at the bound one is evicted:
// the host with the most of them loses its oldest one, rather one that has not sent its hello. A real worker sends it at
// once, so many half hellos cost their own host its places and do not keep other workers out.
type unidentified struct {
	limit int

	mu struct {
		sync.Mutex
		list  []*unidentifiedConn // oldest first
		hosts map[string]int
	}
}

type unidentifiedConn struct {
	conn          net.Conn
	host          string
	came          time.Time
	helloReceived bool // its hello was complete; guarded by the lock
}

func newUnidentified(limit int) *unidentified {
	s := &unidentified{limit: limit}
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

// admit notes a connection. It returns the one that is evicted for it, or nil.
func (s *unidentified) admit(conn net.Conn) (added, evicted *unidentifiedConn) {
	added = &unidentifiedConn{conn: conn, host: hostOf(conn), came: time.Now()}
	failpoint.At("tensorpipe.unidentified.admit")
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

// victim returns the connection to evict. Called with the lock.
func (s *unidentified) victim() (worst *unidentifiedConn) {
	worse := func(a, b *unidentifiedConn) bool {
		if x, y := s.mu.hosts[a.host], s.mu.hosts[b.host]; x != y {
			return x > y
		}
		return !a.helloReceived && b.helloReceived
	}
	for _, x := range s.mu.list { // of equals the oldest
		if worst == nil || worse(x, worst) {
			worst = x
		}
	}
	return worst
}

// remove forgets a connection. Called with the lock.
func (s *unidentified) remove(x *unidentifiedConn) {
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

func (s *unidentified) helloReceived(x *unidentifiedConn) {
	failpoint.At("tensorpipe.unidentified.hello")
	s.mu.Lock()
	defer s.mu.Unlock()
	x.helloReceived = true
}

// leave forgets a connection whose handshake is done or has failed.
func (s *unidentified) leave(x *unidentifiedConn) {
	failpoint.At("tensorpipe.unidentified.leave")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(x)
}

// dropLog logs why connections were refused, at most one line a second, so that bad connections do not fill the log.
type dropLog struct {
	logger *slog.Logger

	mu struct {
		sync.Mutex
		last    time.Time
		skipped int
	}
}

func (c *dropLog) dropped(conn net.Conn, err error) {
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
	c.logger.Warn("connection dropped in its handshake", slog.String("peer", conn.RemoteAddr().String()),
		slog.String("err", err.Error()), slog.Int("not_logged", skipped))
}
