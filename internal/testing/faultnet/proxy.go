// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package faultnet

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// dialFunc opens a connection, as net.Dialer's DialContext does.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Fault is what a Proxy does to the bytes of one direction. The zero value passes them on.
type Fault struct {
	// Delay holds every chunk back for this long.
	Delay time.Duration
	// BytesPerSecond limits the speed.
	BytesPerSecond int
	// Swallow takes the bytes and passes nothing on, as a peer that became unreachable (half open) does.
	Swallow bool
	// Garble inverts every byte.
	Garble bool
	// CutAfter, if it is not 0, resets one connection on both sides: the first of which so many bytes have passed. The fault is over then.
	CutAfter int
}

// Proxy passes connections on to a server and breaks them on command.
type Proxy struct {
	listener net.Listener
	dial     dialFunc
	target   string

	up, down atomic.Pointer[Fault]
	refuse   atomic.Bool

	mu     sync.Mutex
	pairs  map[*pair]struct{}
	closed bool
	wg     sync.WaitGroup
	ctx    context.Context //nolint:containedctx // the proxy's own life, ended by Close
	cancel context.CancelFunc
}

// NewProxy accepts on listener and connects each client to target with dial (nil: TCP). Close ends it.
func NewProxy(listener net.Listener, target string, dial dialFunc) *Proxy {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	p := &Proxy{listener: listener, dial: dial, target: target, pairs: map[*pair]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.up.Store(&Fault{})
	p.down.Store(&Fault{})
	p.wg.Go(p.accept)
	return p
}

// ListenTCP is NewProxy on a free port of 127.0.0.1.
func ListenTCP(target string) (*Proxy, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return NewProxy(listener, target, nil), nil
}

// Addr is the address that clients dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetUp changes what happens to bytes towards the server, also on open connections.
func (p *Proxy) SetUp(f Fault) { p.up.Store(&f) }

// SetDown changes what happens to bytes towards the clients, also on open connections.
func (p *Proxy) SetDown(f Fault) { p.down.Store(&f) }

// Refuse makes the proxy cut new connections at once (true) or take them again (false).
func (p *Proxy) Refuse(on bool) { p.refuse.Store(on) }

// Conns returns how many connections pass through the proxy now.
func (p *Proxy) Conns() int { return len(p.open()) }

// Cut resets all open connections, on both sides, and returns how many there were.
func (p *Proxy) Cut() int { return p.each((*pair).cut) }

// CutClients resets all open connections for the clients alone: the server hears nothing of it. It returns how many there
// were.
func (p *Proxy) CutClients() int { return p.each((*pair).cutClient) }

func (p *Proxy) each(do func(*pair)) int {
	pairs := p.open()
	for _, c := range pairs {
		do(c)
	}
	return len(pairs)
}

// open returns the connections that have not ended. One that was cut counts no more, although its goroutines may take a
// moment to end.
func (p *Proxy) open() []*pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Keys(p.pairs)), (*pair).ended)
}

// Inject writes bytes towards the clients of all open connections, between the server's own.
func (p *Proxy) Inject(garbage []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		_, _ = c.client.Write(garbage)
	}
}

// Close cuts everything and waits until the proxy's goroutines have ended.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	err := p.listener.Close()
	p.Cut()
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.refuse.Load() {
			reset(client)
			continue
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := p.dial(p.ctx, "tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	c := &pair{client: client, server: server, gone: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.cut()
		return
	}
	p.pairs[c] = struct{}{}
	p.mu.Unlock()
	p.wg.Go(func() { c.copy(c.server, c.client, &p.up) })
	c.copy(c.client, c.server, &p.down)
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

// pair is one connection through the proxy.
type pair struct {
	client, server net.Conn
	once           sync.Once
	gone           chan struct{}
	hidden         atomic.Bool // the client's end is kept from the server
}

func (c *pair) ended() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

func (c *pair) cut() {
	c.once.Do(func() {
		close(c.gone)
		reset(c.client)
		reset(c.server)
	})
}

func (c *pair) cutClient() {
	c.hidden.Store(true)
	reset(c.client)
}

func (c *pair) finish() {
	if c.hidden.Load() {
		<-c.gone
		return
	}
	c.once.Do(func() {
		close(c.gone)
		_ = c.client.Close()
		_ = c.server.Close()
	})
}

func (c *pair) copy(to, from net.Conn, fault *atomic.Pointer[Fault]) {
	buf := make([]byte, 16<<10)
	for passed := 0; ; {
		n, err := from.Read(buf)
		current := fault.Load()
		f, chunk := *current, buf[:n]
		if n > 0 && f.CutAfter > 0 && passed+n >= f.CutAfter && fault.CompareAndSwap(current, &Fault{}) {
			_ = c.send(to, chunk[:max(0, f.CutAfter-passed)], 0)
			c.cut()
			return
		}
		passed += n
		if n > 0 && !f.Swallow {
			if f.Garble {
				for i := range chunk {
					chunk[i] = ^chunk[i]
				}
			}
			if !c.pause(f.Delay) || !c.send(to, chunk, f.BytesPerSecond) {
				c.finish()
				return
			}
		}
		if err != nil {
			if !f.Swallow {
				c.finish()
				return
			}
			<-c.gone // a half-open connection hides the end as well
			return
		}
	}
}

// send writes chunk, in slices of a tenth of a second when the speed is limited.
func (c *pair) send(to net.Conn, chunk []byte, speed int) bool {
	for len(chunk) > 0 {
		n := len(chunk)
		if speed > 0 {
			n = min(n, max(1, speed/10))
			if !c.pause(time.Duration(n) * time.Second / time.Duration(speed)) {
				return false
			}
		}
		if _, err := to.Write(chunk[:n]); err != nil {
			return false
		}
		chunk = chunk[n:]
	}
	return true
}

func (c *pair) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.gone:
		return false
	}
}

// reset closes a connection so that the other side sees a reset instead of an orderly end.
func reset(conn net.Conn) {
	switch c := conn.(type) {
	case *net.TCPConn:
		_ = c.SetLinger(0)
	case *Conn:
		c.Reset()
		return
	}
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return
	}
}
