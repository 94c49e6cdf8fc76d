// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// nextAfter is how long an address of a name may be silent before the next one is dialled too.
const nextAfter = 300 * time.Millisecond

// addresses returns what addr, "host:port", stands for: one address for each that the host's name has.
func addresses(ctx context.Context, d *net.Dialer, network, addr string) ([]string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || !strings.HasPrefix(network, "tcp") || net.ParseIP(host) != nil || strings.Contains(host, "%") {
		return []string{addr}, nil //nolint:nilerr // the dialer knows what is wrong
	}
	resolver := d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ips, err := resolver.LookupIPAddr(undated{ctx}, host) // with zones
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	all := dialled(ips, network, port)
	if len(all) == 0 {
		return []string{addr}, nil // the dialer knows what is wrong
	}
	return all, nil
}

// dialled returns the addresses of a name that a network has, with their zones.
func dialled(ips []net.IPAddr, network, port string) (all []string) {
	for _, ip := range ips {
		if v4 := ip.IP.To4() != nil; network == "tcp4" && !v4 || network == "tcp6" && v4 {
			continue
		}
		all = append(all, net.JoinHostPort(ip.String(), port))
	}
	return all
}

// dialFunc dials one address.
type dialFunc func(ctx context.Context, addr string) (net.Conn, error)

func one(d *net.Dialer, network string) dialFunc {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return d.DialContext(undated{ctx}, network, addr)
	}
}

// first dials addresses one after another, without waiting for long for one that does not answer, and returns the first connection.
// The error is that of the first address.
func first(ctx context.Context, addrs []string, dial dialFunc) (net.Conn, error) {
	if len(addrs) == 1 {
		return dial(ctx, addrs[0])
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at   int
		conn net.Conn
		err  error
	}
	results := make(chan result)
	open, next := 0, 0
	dialNext := func() {
		at := next
		next++
		open++
		go func() {
			conn, err := dial(ctx, addrs[at])
			results <- result{at, conn, err}
		}()
	}
	dialNext()
	var conn net.Conn
	errs := make([]error, len(addrs))
	late := time.NewTicker(nextAfter)
	defer late.Stop()
	for open > 0 {
		select {
		case r := <-results:
			open--
			switch errs[r.at] = r.err; {
			case r.err != nil:
			case conn == nil:
				conn = r.conn
				cancel() // the others end, and are waited for
			default:
				_ = r.conn.Close()
			}
			if conn == nil && open == 0 && next < len(addrs) {
				dialNext()
			}
		case <-late.C:
			if conn == nil && next < len(addrs) {
				dialNext()
			}
		}
	}
	if conn != nil {
		return conn, nil
	}
	return nil, errs[0]
}

// aloneFor is how long the address that was reached before may be silent before others are dialled: long enough for the network to lose
// the first packets of a connection, which are sent again after one second and after three. It takes at most three quarters of the time
// that there is.
const aloneFor = 5 * time.Second

// Faithful dials one server again and again. If its name has several addresses, the one that was reached last is dialled alone at first,
// and others only if it refuses or does not answer in time: behind another may be another server, and one that is silent would delay each
// connection. Its zero value is ready to use.
type Faithful struct {
	// Refuse, if not nil, is asked about each address ("IP:port") before a connection is tried. Its error is that of the attempt.
	Refuse func(addr string) error

	mu struct {
		sync.Mutex

		reached string
	}
}

// Alive is [Dial] with keep-alive, which finds a peer whose machine vanished.
func (f *Faithful) Alive(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 4}}
	if f.Refuse != nil {
		d.Control = func(_, addr string, _ syscall.RawConn) error { return f.Refuse(addr) }
	}
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
