// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// dialGrace is how long a dial may continue after its context ended. A connection that a PyTorch listener accepted must get
// its preamble, so a dial is not cut off in the middle.
const dialGrace = time.Second

// dialAttempts is how often a refused dial is tried. A peer listens before it publishes, so refusal means that its process has ended,
// or that its queue is full for a moment.
const dialAttempts = 4

// dial connects to a peer, from our published address, by which a Go peer of generation A knows us, and identifies this rank.
func dial(ctx context.Context, from netip.Addr, addr netip.AddrPort, id int64, hello bool) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, cohort.FromContext(ctx, "gloo: dial")
	}
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(dialGrace, cancel)
		context.AfterFunc(patient, func() { t.Stop() })
	})
	defer stop()

	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	if !hello {
		dialer.LocalAddr = &net.TCPAddr{IP: from.AsSlice(), Zone: from.Zone()}
	}
	wait := 25 * time.Millisecond
	var err error
	for attempt := range dialAttempts {
		if attempt > 0 {
			failpoint.At("gloo.dial.pause")
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil, cohort.FromContext(ctx, "gloo: dial")
			}
			wait *= 2
		}
		failpoint.At("gloo.dial")
		var conn net.Conn
		if conn, err = dialer.DialContext(patient, "tcp", addr.String()); err != nil {
			if errors.Is(err, syscall.EADDRNOTAVAIL) && dialer.LocalAddr != nil {
				dialer.LocalAddr = nil // no route from there: PyTorch does not check our address
				continue
			}
			if ctxdial.Refused(err) {
				continue
			}
			break
		}
		if hello {
			failpoint.At("gloo.dial.hello")
			var buf [gloowire.PreambleSize]byte
			if _, err = conn.Write(gloowire.AppendPreamble(buf[:0], id)); err != nil {
				_ = conn.Close()
				break
			}
		}
		if ctx.Err() != nil {
			_ = conn.Close()
			return nil, cohort.FromContext(ctx, "gloo: dial")
		}
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, cohort.FromContext(ctx, "gloo: dial")
	}
	e := cohort.Newf("gloo: dial", cohort.PeerLost, "the peer published %v but cannot be reached there: %w", addr, err)
	e.Peer = addr.String()
	return nil, e
}

// setLazy notes what this rank published, for the time when the pair is used first.
func (p *pair) setLazy(own gloowire.Record) {
	failpoint.At("gloo.lazy.set")
	p.d.mu.Lock()
	p.own = own
	p.d.mu.Unlock()
}

// connectLazily starts connecting a pair at its first use, or when its peer dials us. Ops queue up meanwhile.
func (p *pair) connectLazily() {
	p.lazyOnce.Do(func() {
		if p.d.wanted != nil {
			failpoint.At("gloo.lazy.want")
			p.d.wanted <- p // has room for every pair once
		}
	})
}

// connectWanted connects lazy pairs as they are asked for, until the mesh ends.
func (d *device) connectWanted(life context.Context) {
	defer d.wg.Done()
	var pairs sync.WaitGroup
	defer func() {
		failpoint.At("gloo.lazy.end")
		pairs.Wait()
	}()
	for {
		failpoint.At("gloo.lazy.next")
		select {
		case p := <-d.wanted:
			pairs.Go(func() {
				ctx, cancel := context.WithTimeout(life, d.cfg.Timeout)
				defer cancel()
				if err := p.connectNow(ctx); err != nil {
					p.notConnected(err)
				}
			})
		case <-life.Done():
			return
		}
	}
}

// notConnected ends a pair that could not be connected.
func (p *pair) notConnected(err error) {
	e := cohort.Wrap("gloo: connect", cohort.Unavailable, err)
	e.Rank, e.Peer = cohort.Rank(p.peer), p.address()
	failpoint.At("gloo.lazy.failed")
	p.d.mu.Lock()
	p.d.machine.Lost(p.peer, e)
	p.d.finish()
	p.kill(e)
}

// connectNow reads the peer's record and dials or waits, whichever is this side's part.
func (p *pair) connectNow(ctx context.Context) error {
	d := p.d
	peer, err := d.fetch(ctx, p)
	if err != nil {
		return err
	}
	theirs, id, hello, err := peer.For(d.cfg.Rank, p.peer)
	if err != nil {
		return err
	}
	ours, _, _, err := p.own.For(p.peer, d.cfg.Rank)
	if err != nil {
		return err
	}
	dials, err := gloowire.Dials(ours.Addr, theirs.Addr)
	if err != nil {
		return err
	}
	if dials {
		p.setRole(roleDial, false)
		return p.dialAndAttach(ctx, ours.Addr.Addr(), theirs.Addr, id, hello)
	}
	p.setRole(roleListen, d.writesRank(peer))
	failpoint.At("gloo.lazy.wait")
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		e := cohort.Ended(ctx, "gloo: connect")
		e.Detail = "the peer did not connect" + d.listener.acceptProblem()
		return e
	}
}
