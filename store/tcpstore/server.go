// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// Server is a store that PyTorch processes of every version and Go processes use at the same time: the server half of
// torch.distributed.TCPStore with is_master=True.
//
// One slow, silent or hostile client delays no other.
type Server struct {
	addr    net.Addr
	serving *storeserve.Server
	started time.Time
	dataDir string
	journal storeserve.Journal // nil without a folder

	close  sync.Once
	closed chan struct{} // everything has ended
	final  finalState    // valid once closed
}

// finalState is what can be asked of a server that has ended.
type finalState struct {
	stats    Stats
	identity Identity
}

// Listen starts a server on addr, "host:port". Port 0 takes a free port, see [Server.Port]; an empty host means all
// addresses, IPv4 and IPv6, which is what PyTorch's server always does.
func Listen(addr string, opts ...ServerOption) (*Server, error) {
	l, err := storeserve.Addr(addr)
	if err != nil {
		return nil, listenError(addr, err)
	}
	return Serve(l, opts...)
}

// listenError says what PyTorch's users look for, then what to do.
func listenError(addr string, err error) error {
	hint := "check that the host names an address of this machine"
	code := cohort.Unavailable
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		code, hint = cohort.AlreadyExists, "end the process that has it, choose another port, or 0 for a free one"
	case errors.Is(err, syscall.EACCES):
		hint = "ports below 1024 need privileges: choose a higher one"
	case ctxdial.BadAddr(err):
		code, hint = cohort.InvalidArgument, `the address must be "host:port" with a port from 0 to 65535`
	}
	return cohort.Newf("tcpstore: listen", code, "The server socket has failed to listen on any local network address: %q: %w; %s",
		addr, err, hint)
}

// Serve starts a server on a listener that exists already: one that was inherited, or one in memory. The server owns the
// listener from then on, also when Serve fails.
func Serve(l net.Listener, opts ...ServerOption) (*Server, error) {
	if l == nil {
		return nil, cohort.New("tcpstore: serve", cohort.InvalidArgument, "the listener is nil")
	}
	config := newServerConfig(opts)
	s := &Server{addr: l.Addr(), started: time.Now(), closed: make(chan struct{})}
	serves := config.serving(s)
	if config.dataDir != "" {
		s.dataDir = config.dataDir
		if err := config.openData(&serves); err != nil {
			_ = l.Close()
			return nil, err
		}
		s.journal = serves.Journal
	}
	if config.journal != nil {
		serves.Machine.Barrier = true
		serves.Journal, serves.Restored = config.journal(&serves.Machine)
	}
	serving, err := storeserve.Start(l, serves)
	if err != nil {
		return nil, cohort.Wrap("tcpstore: serve", cohort.Unavailable, err)
	}
	s.serving = serving
	return s, nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.addr }

// Port returns the TCP port that the server listens on, or 0 when it does not listen on TCP. It corresponds to
// TCPStore.port.
func (s *Server) Port() int {
	if a, ok := s.addr.(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// Close ends the server at once: the listener and all connections are closed. It is idempotent; every call returns when
// all has ended.
func (s *Server) Close() error {
	s.close.Do(func() {
		s.serving.Do(func(c *storeserve.Core) { s.final = finalState{s.stats(c), Identity(c.Machine.Identity())} })
		s.serving.End()
		close(s.closed)
	})
	<-s.closed
	return nil
}

// Shutdown stops accepting, waits until all clients have closed their connections, and then ends the server. When ctx
// ends first the remaining connections are closed, as by Close, and the error says how many there were, and from where.
func (s *Server) Shutdown(ctx context.Context) error {
	gone := s.serving.Drain()
	select {
	case <-gone:
		return s.Close()
	case <-s.closed:
		return nil
	case <-ctx.Done():
	}
	left, some := s.serving.Clients(4)
	_ = s.Close()
	if left == 0 {
		return nil
	}
	e := cohort.Ended(ctx, "tcpstore: shutdown")
	e.Detail = strconv.Itoa(left) + " connections were still open and have been closed, among them " + some
	return e
}
