// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// place is where the session with one worker is or will be. It is in the table of the endpoint as long as something
// happens in it or its session lives, so everybody who has to do with that worker meets in the same place. Guarded by the
// endpoint's lock.
type place struct {
	session  *Session
	dial     *dialing // of ours, under way and not overtaken by a link of the peer's
	incoming int      // links of the peer's own dials that are being set up
	// Arriving links are numbered, so that a link that was set up more slowly does not replace a later one: that of a
	// restarted worker, or of a worker that dialled again.
	arrived, installed uint64
	change             chan struct{} // closed and replaced when there is news for who waits
}

// dialing is one dial of ours. err is set before done is closed.
type dialing struct {
	done      chan struct{}
	err       error
	overtaken chan struct{} // closed when a link of the peer's has come
}

func newDialing() *dialing {
	return &dialing{done: make(chan struct{}), overtaken: make(chan struct{})}
}

func (p *place) busy() bool { return p.dial != nil || p.incoming > 0 }

func (p *place) alive() bool { return p.session != nil && p.session.alive() }

// linked reports whether there is a live link with the same start of the worker.
func (p *place) linked(incarnation uint64) bool {
	return p.alive() && p.session.Link != nil && p.session.Link.Peer().Incarnation == incarnation
}

func (p *place) notify() {
	close(p.change)
	p.change = make(chan struct{})
}

// overtake ends our dial in favour of a link that has come.
func (p *place) overtake() {
	if p.dial != nil {
		close(p.dial.overtaken)
		p.dial = nil
	}
}

// place returns the place of a worker. Called with the lock.
func (ep *Endpoint) place(name string) *place {
	p := ep.mu.places[name]
	if p == nil {
		p = &place{change: make(chan struct{})}
		ep.mu.places[name] = p
	}
	return p
}

// removeIfUnused removes a place where nothing is or happens. Called with the lock.
func (ep *Endpoint) removeIfUnused(name string, p *place) {
	if ep.mu.places[name] == p && !p.busy() && !p.alive() {
		delete(ep.mu.places, name)
	}
}

// reserve keeps the place of a worker for the link that it is opening, and numbers that link. It returns nil when that
// worker has to wait: our own dial is under way and wins, or there is a link with the same start of it, so that its dial
// has crossed ours. A worker that insists has waited for that link and does not have it: the new one replaces it, once the
// worker has proved who it is.
func (ep *Endpoint) reserve(name string, offer CohortOffer) (*place, uint64) {
	failpoint.At("tensorpipe.place.reserve")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.place(name)
	if !offer.Insist && (p.dial != nil && ep.name < name || p.linked(offer.Incarnation)) {
		return nil, 0
	}
	p.incoming++
	p.arrived++
	return p, p.arrived
}

// unreserve ends a reservation that may or may not have been used.
func (ep *Endpoint) unreserve(name string, p *place) {
	failpoint.At("tensorpipe.place.unreserve")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p.incoming--
	p.notify()
	ep.removeIfUnused(name, p)
}

// install makes a session the one of its place and returns the one that it replaces. Called with the lock.
func (p *place) install(s *Session, number uint64) (replaced *Session) {
	replaced = p.session
	p.session, p.installed = s, number
	p.overtake()
	p.notify()
	return replaced
}

// trackLink notes a link, so that Close finds it whatever becomes of it.
func (ep *Endpoint) trackLink(l *cohortwire.Link) {
	failpoint.At("tensorpipe.place.keep")
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
	failpoint.At("tensorpipe.place.drop")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	delete(ep.mu.links, l)
	name := l.Peer().Name
	if p := ep.mu.places[name]; p != nil && p.session != nil && p.session.Link == l {
		p.session = nil
		ep.removeIfUnused(name, p)
	}
}

// closeAll closes every link, and the pipes of Connect.
func (ep *Endpoint) closeAll() {
	failpoint.At("tensorpipe.endpoint.close.all")
	ep.mu.Lock()
	places, links := ep.mu.places, ep.mu.links
	ep.mu.places, ep.mu.links = map[string]*place{}, map[*cohortwire.Link]struct{}{}
	ep.mu.Unlock()
	for l := range links {
		_ = l.Close()
	}
	for _, p := range places {
		if p.session != nil {
			_ = p.session.Close()
		}
	}
}
