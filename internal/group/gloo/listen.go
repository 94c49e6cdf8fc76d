// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Bounds on unidentified connections at our port.
const (
	maxUnidentifiedConns = 256              // connections without a valid identifier
	helloLimit           = 10 * time.Second // time to send it
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

func listenOn(ctx context.Context, ip netip.Addr) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return nil, cohort.Newf("gloo: listen", cohort.Unavailable, "cannot listen on %v: %w", ip, err)
	}
	return ln, nil
}

// listener takes the connections of a device in generations B to D. A dialler identifies itself by the first 8 bytes; a
// connection that does not, or sends an identifier that was never published, is closed.
type listener struct {
	d  *device
	ln net.Listener

	mu struct {
		sync.Mutex
		unidentified []net.Conn // oldest first
		refused      error      // why the last connection could not be taken; nil: it was
		stopped      bool
	}
}

func (d *device) startListener(ln net.Listener) {
	d.listener = &listener{d: d, ln: ln}
	d.wg.Add(1)
	go d.listener.run()
}

func (l *listener) run() {
	defer l.d.wg.Done()
	for {
		failpoint.At("gloo.accept.next")
		conn, err := l.ln.Accept()
		if err != nil {
			failpoint.At("gloo.accept.failed")
			l.mu.Lock()
			l.mu.refused = err
			stopped := l.mu.stopped
			l.mu.Unlock()
			if stopped {
				return
			}
			// Out of descriptors, most likely: give others a moment to free some.
			failpoint.At("gloo.accept.pause")
			select {
			case <-time.After(20 * time.Millisecond):
			case <-l.d.ended:
				return
			}
			continue
		}
		failpoint.At("gloo.accept")
		user := l.d.users.JudgeConn(conn)
		if user == peeruid.Refused {
			_ = conn.Close()
			continue
		}
		if l.admit(conn) {
			l.d.wg.Add(1)
			go l.identify(conn, user)
		}
	}
}

// acceptProblem reports why this rank cannot take connections: "" if it can. The missing ranks cannot know that.
func (l *listener) acceptProblem() string {
	if l == nil {
		return ""
	}
	failpoint.At("gloo.listener.trouble")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.refused == nil || l.mu.stopped {
		return ""
	}
	return "; this rank cannot take connections: " + l.mu.refused.Error()
}

// admit records an unidentified connection. At the bound the oldest one is closed, since a real peer identifies itself at once.
func (l *listener) admit(conn net.Conn) bool {
	failpoint.At("gloo.admit")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped {
		_ = conn.Close()
		return false
	}
	if len(l.mu.unidentified) >= maxUnidentifiedConns {
		_ = l.mu.unidentified[0].Close()
		l.mu.unidentified = append(l.mu.unidentified[:0], l.mu.unidentified[1:]...)
	}
	l.mu.refused = nil
	l.mu.unidentified = append(l.mu.unidentified, conn)
	return true
}

// identify finds out which rank has dialled. One that has closed its end already may have died, which ends the group: it is believed if it
// has written what only processes that can read the store know.
func (l *listener) identify(conn net.Conn, user peeruid.Verdict) {
	defer l.d.wg.Done()
	var hello [gloowire.PreambleSize]byte
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	failpoint.At("gloo.hello.read")
	_, err := io.ReadFull(conn, hello[:])
	failpoint.At("gloo.hello")
	l.mu.Lock()
	for i, c := range l.mu.unidentified {
		if c == conn {
			l.mu.unidentified = append(l.mu.unidentified[:i], l.mu.unidentified[i+1:]...)
			break
		}
	}
	stopped := l.mu.stopped
	l.mu.Unlock()
	p, guessed := l.d.pairOf(gloowire.ParsePreamble(hello))
	if err != nil || stopped || p == nil || guessed && user != peeruid.Accepted {
		l.d.cfg.Logger.Debug("gloo connection refused: no known identifier", slog.String("from", conn.RemoteAddr().String()))
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	p.offer(conn, guessed)
}

// newIdentifiers draws what each rank has to write when it dials us. Only processes that can read the store know them, so no other
// process can take a rank's place. Peers of generation D may write their rank instead; where the generation is known, we publish ranks.
func (d *device) newIdentifiers() []int64 {
	ids := make([]int64, len(d.pairs))
	for r := range ids {
		ids[r] = int64(r)
		if d.cfg.Generation != D {
			var b [8]byte
			_, _ = rand.Read(b[:])                                             // never fails
			ids[r] = int64(binary.LittleEndian.Uint64(b[:])&(1<<62-1)) | 1<<62 // positive, and no rank
		}
	}
	return ids
}

// pairOf returns the pair that an identifier belongs to. guessed: it is a rank, which any process can write.
func (d *device) pairOf(id int64) (p *pair, guessed bool) {
	if r := slices.Index(d.ids, id); r >= 0 && d.cfg.Generation != D {
		return d.pairs[r], false
	}
	if id < 0 || id >= int64(len(d.pairs)) {
		return nil, false
	}
	return d.pairs[id], true
}

// writesRank reports whether the publisher of a record writes its rank when it dials: it does when it publishes no
// identifiers itself.
func (d *device) writesRank(peer gloowire.Record) bool {
	return d.cfg.Generation == D || peer.Generation == C && peer.IDs == nil
}

// stop closes the port and all unidentified connections. It is idempotent.
func (l *listener) stop() {
	failpoint.At("gloo.listener.stop")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped {
		return
	}
	l.mu.stopped = true
	_ = l.ln.Close()
	for _, c := range l.mu.unidentified {
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

// offer takes a connection whose dialler said it is this pair's peer. Before the peer's record was read it is unknown who
// must dial, so it is parked; one that knows our identifier takes the place of one that may have guessed.
func (p *pair) offer(conn net.Conn, guessed bool) {
	failpoint.At("gloo.offer")
	p.d.mu.Lock()
	r := p.role
	if r == roleUnknown && !p.dead && !p.d.closing && (p.parked == nil || p.guessed && !guessed) {
		before := p.parked
		p.parked, p.guessed = conn, guessed
		p.d.mu.Unlock()
		if before != nil {
			_ = before.Close()
		}
		if p.d.cfg.Lazy {
			p.connectLazily()
		}
		return
	}
	plain := p.plain
	p.d.mu.Unlock()
	if r != roleListen || guessed && !plain {
		_ = conn.Close()
		return
	}
	p.attach(conn)
}

// setRole fixes who dials, and whether the peer may say who it is by its rank. A parked connection is taken or refused.
func (p *pair) setRole(r role, plain bool) {
	failpoint.At("gloo.role")
	p.d.mu.Lock()
	p.role, p.plain = r, plain
	conn, refused := p.parked, r != roleListen || p.guessed && !plain
	p.parked = nil
	p.d.mu.Unlock()
	switch {
	case conn == nil:
	case refused:
		_ = conn.Close()
	default:
		p.attach(conn)
	}
}

// acceptFrom takes the first connection from the peer's published IP address at a pair's own port (generation A). Others
// are closed.
func (p *pair) acceptFrom(ctx context.Context, ln net.Listener, ip netip.Addr) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer func() { _ = ln.Close() }()
	for {
		failpoint.At("gloo.accept.from")
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return cohort.FromContext(ctx, "gloo: accept")
			}
			return cohort.Wrap("gloo: accept", cohort.Unavailable, err)
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
