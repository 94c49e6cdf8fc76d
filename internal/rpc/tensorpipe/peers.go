// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// peerSlot is where the session with one worker is or will be. It is in the table of the endpoint as long as something
// happens in it or its session lives, so all goroutines that connect with that worker share it. Guarded by the
// endpoint's lock.
type peerSlot struct {
	session  *Session
	dial     *dialing // ours, under way and not overtaken by a link of the peer's
	incoming int      // links of the peer's own dials that are being set up
	// Arriving links are numbered, so that a link that was set up more slowly does not replace a later one: that of a
	// restarted worker, or of a worker that dialled again.
	arrived, installed uint64
	change             chan struct{} // closed and replaced to notify waiters
}

// dialing is one dial of ours. err is set before done is closed.
type dialing struct {
	done      chan struct{}
	err       error
	overtaken chan struct{} // closed when a link of the peer's is set up
}

func newDialing() *dialing {
	return &dialing{done: make(chan struct{}), overtaken: make(chan struct{})}
}

func (p *peerSlot) busy() bool { return p.dial != nil || p.incoming > 0 }

func (p *peerSlot) alive() bool { return p.session != nil && p.session.alive() }

// linked reports whether there is a live link with the same start of the worker.
func (p *peerSlot) linked(incarnation uint64) bool {
	return p.alive() && p.session.Link != nil && p.session.Link.Peer().Incarnation == incarnation
}

func (p *peerSlot) notify() {
	close(p.change)
	p.change = make(chan struct{})
}

// overtake ends our dial in favour of an arrived link.
func (p *peerSlot) overtake() {
	if p.dial != nil {
		close(p.dial.overtaken)
		p.dial = nil
	}
}

// peerSlot returns the slot of a worker. Called with the lock.
func (ep *Endpoint) peerSlot(name string) *peerSlot {
	p := ep.mu.peerSlots[name]
	if p == nil {
		p = &peerSlot{change: make(chan struct{})}
		ep.mu.peerSlots[name] = p
	}
	return p
}

// removeIfUnused removes a slot without session, dial or incoming link. Called with the lock.
func (ep *Endpoint) removeIfUnused(name string, p *peerSlot) {
	if ep.mu.peerSlots[name] == p && !p.busy() && !p.alive() {
		delete(ep.mu.peerSlots, name)
	}
}

// reserve reserves the slot of a worker for the link that it is opening, and numbers that link. It returns nil when that
// worker has to wait: our own dial is under way and wins, or there is a link with the same start of it, so that its dial
// has crossed ours. A worker that insists has waited for that link and does not have it: the new one replaces it, once the
// worker has proved who it is.
func (ep *Endpoint) reserve(name string, offer cohortAd) (*peerSlot, uint64) {
	failpoint.At("tensorpipe.slot.reserve")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.peerSlot(name)
	if !offer.Insist && (p.dial != nil && ep.name < name || p.linked(offer.Incarnation)) {
		return nil, 0
	}
	p.incoming++
	p.arrived++
	return p, p.arrived
}

// unreserve ends a reservation that may or may not have been used.
func (ep *Endpoint) unreserve(name string, p *peerSlot) {
	failpoint.At("tensorpipe.slot.unreserve")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p.incoming--
	p.notify()
	ep.removeIfUnused(name, p)
}

// install makes a session the one of its slot and returns the one that it replaces. Called with the lock.
func (p *peerSlot) install(s *Session, number uint64) (replaced *Session) {
	replaced = p.session
	p.session, p.installed = s, number
	p.overtake()
	p.notify()
	return replaced
}

// trackLink notes a link, so that Close finds it in any case.
func (ep *Endpoint) trackLink(l *cohortwire.Link) {
	failpoint.At("tensorpipe.slot.keep")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	select {
	case <-l.Done(): // its OnClose may have run already
	default:
		ep.mu.links[l] = struct{}{}
	}
}

// dropLink forgets a link that ended.
func (ep *Endpoint) dropLink(l *cohortwire.Link) {
	failpoint.At("tensorpipe.slot.drop")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	delete(ep.mu.links, l)
	name := l.Peer().Name
	if p := ep.mu.peerSlots[name]; p != nil && p.session != nil && p.session.Link == l {
		p.session = nil
		ep.removeIfUnused(name, p)
	}
}

// closeAll closes every link, and the pipes of Connect.
func (ep *Endpoint) closeAll() {
	failpoint.At("tensorpipe.endpoint.close.all")
	ep.mu.Lock()
	peerSlots, links := ep.mu.peerSlots, ep.mu.links
	ep.mu.peerSlots, ep.mu.links = map[string]*peerSlot{}, map[*cohortwire.Link]struct{}{}
	ep.mu.Unlock()
	for l := range links {
		_ = l.Close()
	}
	for _, p := range peerSlots {
		if p.session != nil {
			_ = p.session.Close()
		}
	}
}

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
