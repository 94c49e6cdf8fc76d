// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo/wire"
)

// Bounds on strangers at our port.
const (
	maxStrangers = 256              // connections that have not said who they are
	helloLimit   = 10 * time.Second // time to say it
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

func listenOn(ctx context.Context, ip netip.Addr) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return nil, dist.Newf("gloo: listen", dist.Unavailable, "cannot listen on %v: %w", ip, err)
	}
	return ln, nil
}

// listener takes the connections of a device in generations B to D. A dialler says who it is by the first 8 bytes; whoever
// does not, or says something that was never published, is closed.
type listener struct {
	d  *device
	ln net.Listener

	mu        sync.Mutex
	strangers []net.Conn // oldest first
	stopped   bool
}

func (d *device) startListener(ln net.Listener) {
	d.listener = &listener{d: d, ln: ln}
	d.wg.Add(1)
	go d.listener.run()
}

func (l *listener) run() {
	defer l.d.wg.Done()
	for {
		conn, err := l.ln.Accept()
		if err != nil {
			l.mu.Lock()
			stopped := l.stopped
			l.mu.Unlock()
			if stopped {
				return
			}
			// Out of descriptors, most likely: give others a moment to free some.
			select {
			case <-time.After(20 * time.Millisecond):
			case <-l.d.ended:
				return
			}
			continue
		}
		if l.admit(conn) {
			l.d.wg.Add(1)
			go l.identify(conn)
		}
	}
}

// admit notes a stranger. At the bound the oldest one goes, since a real peer speaks at once.
func (l *listener) admit(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		_ = conn.Close()
		return false
	}
	if len(l.strangers) >= maxStrangers {
		_ = l.strangers[0].Close()
		l.strangers = append(l.strangers[:0], l.strangers[1:]...)
	}
	l.strangers = append(l.strangers, conn)
	return true
}

func (l *listener) identify(conn net.Conn) {
	defer l.d.wg.Done()
	var hello [wire.PreambleSize]byte
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	_, err := io.ReadFull(conn, hello[:])
	l.mu.Lock()
	for i, c := range l.strangers {
		if c == conn {
			l.strangers = append(l.strangers[:i], l.strangers[i+1:]...)
			break
		}
	}
	stopped := l.stopped
	l.mu.Unlock()
	id := wire.ParsePreamble(hello)
	if err != nil || stopped || id < 0 || id >= int64(len(l.d.pairs)) || l.d.pairs[id] == nil {
		l.d.cfg.Logger.Debug("gloo connection refused: no known identifier", slog.String("from", conn.RemoteAddr().String()), slog.Int64("id", id))
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	l.d.pairs[id].offer(conn)
}

// stop closes the port and all strangers. It is idempotent.
func (l *listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.stopped = true
	_ = l.ln.Close()
	for _, c := range l.strangers {
		_ = c.Close()
	}
}

// role is which side of a pair dials.
type role uint8

const (
	roleUnknown role = iota
	roleDial
	roleListen
)

// offer takes a connection whose dialler said it is this pair's peer. Before the peer's record was read nobody knows who
// must dial, so it is parked.
func (p *pair) offer(conn net.Conn) {
	p.d.mu.Lock()
	r := p.role
	if r == roleUnknown && p.parked == nil && !p.dead && !p.d.closing {
		p.parked = conn
		p.d.mu.Unlock()
		if p.d.cfg.Lazy {
			p.connectLazily()
		}
		return
	}
	p.d.mu.Unlock()
	if r != roleListen {
		_ = conn.Close()
		return
	}
	p.attach(conn)
}

// setRole fixes who dials. A parked connection is taken or refused.
func (p *pair) setRole(r role) {
	p.d.mu.Lock()
	p.role = r
	conn := p.parked
	p.parked = nil
	p.d.mu.Unlock()
	if conn == nil {
		return
	}
	if r == roleListen {
		p.attach(conn)
	} else {
		_ = conn.Close()
	}
}

// acceptFrom takes the first connection from the peer's published IP address at a pair's own port (generation A). Others
// are closed.
func (p *pair) acceptFrom(ctx context.Context, ln net.Listener, ip netip.Addr) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer func() { _ = ln.Close() }()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return dist.FromContext("gloo: accept", ctx)
			}
			return dist.Wrap("gloo: accept", dist.Unavailable, err)
		}
		from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		if err == nil && from.Addr().Unmap().WithZone("") == ip.Unmap().WithZone("") {
			p.attach(conn)
			return nil
		}
		p.d.cfg.Logger.Warn("gloo connection refused: not the peer's published address",
			slog.String("from", conn.RemoteAddr().String()), slog.String("want", ip.String()))
		_ = conn.Close()
	}
}
