// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ctxdial opens connections, so that a dial which a context's deadline ends is known for that.
package ctxdial

import (
	"context"
	"net"
	"time"
)

// Dial connects as [net.Dialer.DialContext] does, but never gives up before ctx has ended. A dialer takes the deadline of a
// context for the socket's own, and the socket's timer can be the first: its caller then sees a time-out with a context that
// is alive, and takes it for a failure of the peer.
func Dial(ctx context.Context, d *net.Dialer, network, addr string) (net.Conn, error) {
	return d.DialContext(undated{ctx}, network, addr)
}

// undated ends when its context does, and does not tell when that will be.
type undated struct{ context.Context } //nolint:containedctx // it is that context

func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
