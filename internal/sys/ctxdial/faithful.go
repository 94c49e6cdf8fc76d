// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// aloneFor is how long the address that was reached before may be silent before others are dialled: long enough for the network to lose
// the first packets of a connection, which are sent again after one second and after three. It takes at most three quarters of the time
// that there is.
const aloneFor = 5 * time.Second

// Faithful dials one server again and again. If its name has several addresses, the one that was reached last is dialled alone at first,
// and others only if it refuses or does not answer in time: behind another may be another server, and one that is silent would delay each
// connection. Its zero value is ready to use.
type Faithful struct {
	mu struct {
		sync.Mutex

		reached string
	}
}

// Alive is [Dial] with keep-alive, which finds a peer whose machine vanished.
func (f *Faithful) Alive(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 4}}
	addrs, err := addresses(ctx, &d, network, addr)
	if err != nil {
		return nil, err
	}
	return f.dial(ctx, addrs, one(&d, network))
}

// dial connects to one of several addresses.
func (f *Faithful) dial(ctx context.Context, addrs []string, dial dialFunc) (net.Conn, error) {
	f.mu.Lock()
	known := slices.Index(addrs, f.mu.reached)
	f.mu.Unlock()
	var conn net.Conn
	var err error
	if known < 0 || len(addrs) == 1 {
		conn, err = first(ctx, addrs, dial)
	} else if conn, err = alone(ctx, addrs[known], dial); err != nil && ctx.Err() == nil {
		others := slices.Concat(addrs[:known], addrs[known+1:], addrs[known:known+1])
		if other, failed := first(ctx, others, dial); failed == nil {
			conn, err = other, nil
		}
	}
	if err == nil {
		f.mu.Lock()
		f.mu.reached = conn.RemoteAddr().String()
		f.mu.Unlock()
	}
	return conn, err
}

// alone dials one address without waiting for it for ever.
func alone(ctx context.Context, addr string, dial dialFunc) (net.Conn, error) {
	limit := aloneFor
	if deadline, bounded := ctx.Deadline(); bounded {
		limit = min(limit, time.Until(deadline)*3/4)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return dial(ctx, addr)
}
