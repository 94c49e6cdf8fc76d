// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/ctxdial"
	"github.com/cohort-dist/cohort/internal/moment"
)

// A rank that dies when it has taken its place, and before it connects to the others, leaves no connection that could end. So while the ranks
// connect, each of them knocks at the listener of the next one: the system refuses that once the process is gone, also if it is stopped or
// busy otherwise. Who finds a rank gone records it, and the others read it there. One knock per rank is enough, however many ranks there are.

const (
	knockEvery = 250 * time.Millisecond // normally the ranks have connected before the first
	refusals   = 2                      // in a row, until a rank is taken for dead
)

// keepDoor keeps the listener of this rank open until the attempt is over: a transport that uses it closes it before.
func (a *attempt) keepDoor() error {
	l, ok := a.listener.(*net.TCPListener)
	if !ok {
		return nil
	}
	door, err := l.File()
	if err != nil {
		return &dist.Error{Op: "group: listen", Code: dist.Unavailable, Rank: dist.Rank(a.p.Rank), Err: err}
	}
	a.door = door
	return nil
}

// knock returns the loss of the next rank when that is gone, or nil when ctx ends.
func (a *attempt) knock(ctx context.Context) error {
	next := (a.p.Rank + 1) % a.p.size()
	addr := a.Members[next].Addr
	if addr == "" {
		return nil
	}
	t := time.NewTicker(knockEvery)
	defer t.Stop()
	for refused := 0; refused < refusals; {
		moment.At("form.knock.wait")
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		moment.At("form.knock")
		limited, cancel := context.WithTimeout(ctx, knockEvery)
		conn, err := ctxdial.Dial(limited, &net.Dialer{}, "tcp", addr)
		cancel()
		if err == nil {
			_ = conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		} else {
			refused = 0
		}
	}
	return &dist.Error{
		Op: "group: new", Code: dist.PeerLost, Rank: dist.Rank(next), Peer: addr,
		Detail: "its process ended before it had connected: nobody listens at its address",
	}
}
