// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"net"
	"strconv"
	"sync"
)

// Shared lets several masters of one process use one server: PyTorch's multi_tenant=True. PyTorch keeps such servers in a
// global variable; here the user holds the value. Its zero value is ready to use.
type Shared struct {
	mu struct {
		sync.Mutex

		servers map[string]*sharedServer // by "host:port" with the real port
	}
}

type sharedServer struct {
	*Server
	users int
}

// Lease is one user's share of a server. The server ends when the last lease is closed.
type Lease struct {
	// Server is the shared server. Its own Close would end it for everybody: use that of the Lease.
	*Server

	shared  *Shared
	key     string
	release sync.Once
	last    bool // this was the last share
}

// Acquire returns a share of the server that this value has on addr, and starts one if it has none. The options apply only then.
// Port 0 always starts a new one, which can be shared under its real port. A server on all addresses is shared by a caller that asks
// for its port, as in PyTorch.
func (s *Shared) Acquire(addr string, opts ...ServerOption) (*Lease, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, listenError(addr, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range []string{addr, ":" + port} {
		if have := s.mu.servers[key]; have != nil && port != "0" {
			have.users++
			return &Lease{Server: have.Server, shared: s, key: key}, nil
		}
	}
	server, err := Listen(addr, opts...)
	if err != nil {
		return nil, err
	}
	key := net.JoinHostPort(host, strconv.Itoa(server.Port()))
	if s.mu.servers == nil {
		s.mu.servers = map[string]*sharedServer{}
	}
	s.mu.servers[key] = &sharedServer{Server: server, users: 1}
	return &Lease{Server: server, shared: s, key: key}, nil
}

// giveBack returns the share, once, and reports whether it was the last.
func (l *Lease) giveBack() bool {
	l.release.Do(func() {
		l.shared.mu.Lock()
		defer l.shared.mu.Unlock()
		have := l.shared.mu.servers[l.key]
		if have.users--; have.users == 0 {
			delete(l.shared.mu.servers, l.key)
			l.last = true
		}
	})
	return l.last
}

// Close gives the share back; the last one closes the server. It is idempotent and ends a Shutdown that still waits.
func (l *Lease) Close() error {
	if l.giveBack() {
		return l.Server.Close()
	}
	return nil
}

// Shutdown gives the share back; the last one shuts the server down, waiting for its clients as [Server.Shutdown] does.
func (l *Lease) Shutdown(ctx context.Context) error {
	if l.giveBack() {
		return l.Server.Shutdown(ctx)
	}
	return nil
}
