// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"net"
	"net/netip"
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
