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

// Faithful dials one server again and again. If its name has several addresses, the one that was reached last is dialled first: behind
// another may be another server, and one that is silent would delay each connection. Its zero value is ready to use.
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
	f.mu.Lock()
	if at := slices.Index(addrs, f.mu.reached); at > 0 {
		addrs = slices.Insert(slices.Delete(addrs, at, at+1), 0, f.mu.reached)
	}
	f.mu.Unlock()
	conn, err := dialOne(ctx, &d, network, addrs)
	if err == nil {
		f.mu.Lock()
		f.mu.reached = conn.RemoteAddr().String()
		f.mu.Unlock()
	}
	return conn, err
}

// dialOne connects to one of several addresses.
func dialOne(ctx context.Context, d *net.Dialer, network string, addrs []string) (net.Conn, error) {
	return first(ctx, addrs, func(ctx context.Context, addr string) (net.Conn, error) {
		return d.DialContext(undated{ctx}, network, addr)
	})
}
