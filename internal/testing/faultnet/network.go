// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package faultnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// Network is a network in memory: listeners and dials by address. The zero value is ready to use.
type Network struct {
	mu        sync.Mutex
	listeners map[Addr]*Listener
	conns     map[*Conn]struct{}
	next      int
}

// Listen opens addr. An empty address gets a fresh one.
func (n *Network) Listen(addr string) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr == "" {
		n.next++
		addr = "mem:" + strconv.Itoa(n.next)
	}
	if n.listeners == nil {
		n.listeners = map[Addr]*Listener{}
		n.conns = map[*Conn]struct{}{}
	}
	if n.listeners[Addr(addr)] != nil {
		return nil, &net.OpError{Op: "listen", Net: "mem", Err: syscall.EADDRINUSE}
	}
	l := &Listener{network: n, addr: Addr(addr), backlog: make(chan *Conn, 128), closed: make(chan struct{})}
	n.listeners[l.addr] = l
	return l, nil
}

// Dial connects to addr; network is ignored. Without a listener the connection is refused.
func (n *Network) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	n.mu.Lock()
	l := n.listeners[Addr(addr)]
	n.next++
	local := Addr("mem-client:" + strconv.Itoa(n.next))
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "mem", Addr: Addr(addr), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	var client *Conn
	client, server := pipe(local, l.addr, func() { n.forget(client) })
	n.mu.Lock()
	n.conns[client] = struct{}{}
	n.mu.Unlock()
	select {
	case l.backlog <- server:
		return client, nil
	case <-l.closed:
		n.forget(client)
		return nil, refused
	case <-ctx.Done():
		n.forget(client)
		return nil, fmt.Errorf("dial %s: %w", addr, context.Cause(ctx))
	}
}

func (n *Network) forget(c *Conn) {
	n.mu.Lock()
	delete(n.conns, c)
	n.mu.Unlock()
}

// CutAll resets every open connection.
func (n *Network) CutAll() {
	n.mu.Lock()
	conns := make([]*Conn, 0, len(n.conns))
	for c := range n.conns {
		conns = append(conns, c)
	}
	n.mu.Unlock()
	for _, c := range conns {
		c.Reset()
	}
}

// Listener accepts connections of a Network.
type Listener struct {
	network *Network
	addr    Addr
	backlog chan *Conn
	once    sync.Once
	closed  chan struct{}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close frees the address and resets connections that were not accepted.
func (l *Listener) Close() error {
	err := errors.New("listener is closed already")
	l.once.Do(func() {
		err = nil
		l.network.mu.Lock()
		delete(l.network.listeners, l.addr)
		l.network.mu.Unlock()
		close(l.closed)
		for {
			select {
			case c := <-l.backlog:
				c.Reset()
			default:
				return
			}
		}
	})
	return err
}

// Addr returns the listener's address.
func (l *Listener) Addr() net.Addr { return l.addr }
