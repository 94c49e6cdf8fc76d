// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// When the process of a worker has ended, another one may get its port. A PyTorch process listens on some twenty of them, and
// a hello that arrives at the wrong one ends it. So the socket that a worker of this machine listens with is noted while
// there is a session with it, and its address is not dialled when that socket is closed. Sockets of other machines cannot be checked.

// listeners are the sockets of this machine that listen, as they were read last: that takes time on a machine with many
// connections, so concurrent callers share it.
type listeners struct {
	mu struct {
		sync.Mutex
		since time.Time // they were read after this
		of    map[netip.AddrPort]string
	}
}

// at returns the identity of the socket that listens at an address of this machine, or "" if none does. known is false when
// it cannot be determined. What is older than since is read again.
func (l *listeners) at(addr string, since time.Time) (id string, known bool) {
	ap, err := netip.ParseAddrPort(strings.TrimPrefix(addr, "uv://"))
	if err != nil || !ctxdial.OwnAddress(ap.Addr().Unmap()) {
		return "", false
	}
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	failpoint.At("rpc.link.listeners")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.since.Before(since) {
		l.mu.since = time.Now()
		l.mu.of = portowner.Listeners()
	}
	for _, ip := range [...]netip.Addr{ap.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if id = l.mu.of[netip.AddrPortFrom(ip, ap.Port())]; id != "" {
			return id, true
		}
	}
	return "", len(l.mu.of) > 0
}

// noteListener remembers the socket that the worker listens with, while there is a session with it.
func (p *Peer) noteListener() {
	met := time.Now()
	failpoint.At("rpc.peer.note")
	p.mu.Lock()
	addr, known := p.mu.addr, p.mu.listener != ""
	p.mu.Unlock()
	if addr == "" || known {
		return
	}
	id, _ := p.net.listeners.at(addr, met)
	failpoint.At("rpc.peer.noted")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.addr == addr && p.mu.conn != nil && p.mu.conn.Alive() {
		p.mu.listener = id
	}
}

// listenerClosed reports whether the socket that the worker listens with is known to be closed. Another one may have its address.
func (p *Peer) listenerClosed(addr string) bool {
	failpoint.At("rpc.peer.gone")
	p.mu.Lock()
	was := p.mu.listener
	p.mu.Unlock()
	if was == "" {
		return false
	}
	now, known := p.net.listeners.at(addr, time.Now())
	return known && now != was
}
