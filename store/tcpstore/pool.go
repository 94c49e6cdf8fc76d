// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// use is what a pooled connection is taken for. Operations that wait have connections of their own, so that they never
// stand in the way of those that do not.
type use uint8

const (
	forShort use = iota
	forWait
	useCount
)

// shortConns bounds the connections of operations that do not wait.
const shortConns = 4

// pool keeps the connections to a PyTorch server: a bounded number per use, opened when needed.
type pool struct {
	open  func(context.Context) (*torchConn, error)
	slots [useCount]chan struct{} // a token per connection in use
	life  context.Context         //nolint:containedctx // ends with the pool, and with it the opening of a connection
	end   context.CancelCauseFunc

	mu struct {
		sync.Mutex
		idle   [useCount][]*torchConn
		busy   map[*torchConn]struct{}
		closed error
	}
}

func newPool(waitConns int, open func(context.Context) (*torchConn, error)) *pool {
	p := &pool{
		open:  open,
		slots: [useCount]chan struct{}{forShort: make(chan struct{}, shortConns), forWait: make(chan struct{}, waitConns)},
	}
	p.life, p.end = context.WithCancelCause(context.Background())
	p.mu.busy = map[*torchConn]struct{}{}
	return p
}

// take waits for a connection.
func (p *pool) take(ctx context.Context, u use) (*torchConn, error) {
	failpoint.At("tcpstore.pool.take")
	select {
	case p.slots[u] <- struct{}{}:
	default:
		failpoint.At("tcpstore.pool.wait")
		select {
		case p.slots[u] <- struct{}{}:
		case <-ctx.Done():
			return nil, cohort.FromContext(ctx, "tcpstore")
		}
	}
	return p.connection(ctx, u)
}

// try is take when a connection of this use is free, and nil otherwise.
func (p *pool) try(ctx context.Context, u use) (*torchConn, error) {
	failpoint.At("tcpstore.pool.try")
	select {
	case p.slots[u] <- struct{}{}:
		return p.connection(ctx, u)
	default:
		return nil, nil
	}
}

// connection returns an idle connection or opens one; the caller has a slot.
func (p *pool) connection(ctx context.Context, u use) (*torchConn, error) {
	failpoint.At("tcpstore.pool.connection")
	p.mu.Lock()
	if err := p.mu.closed; err != nil {
		p.mu.Unlock()
		failpoint.At("tcpstore.pool.refused")
		<-p.slots[u]
		return nil, err
	}
	if n := len(p.mu.idle[u]); n > 0 {
		t := p.mu.idle[u][n-1]
		p.mu.idle[u] = slices.Delete(p.mu.idle[u], n-1, n)
		p.mu.busy[t] = struct{}{}
		p.mu.Unlock()
		return t, nil
	}
	p.mu.Unlock()
	kept := false
	defer func() { // also when the user's dialer panics
		if !kept {
			failpoint.At("tcpstore.pool.failed")
			<-p.slots[u]
		}
	}()
	t, err := p.openOne(ctx)
	kept = err == nil
	return t, err
}

// openOne opens a connection that close ends, also while it is being opened.
func (p *pool) openOne(ctx context.Context) (*torchConn, error) {
	alive, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.life, func() { cancel(context.Cause(p.life)) })()
	failpoint.At("tcpstore.pool.open")
	t, err := p.open(alive)
	if err == nil {
		err = p.adopt(t)
	}
	return t, err
}

// adopt makes a new connection one that close ends.
func (p *pool) adopt(t *torchConn) error {
	failpoint.At("tcpstore.pool.adopt")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed != nil {
		_ = t.conn.Close()
		return p.mu.closed
	}
	p.mu.busy[t] = struct{}{}
	return nil
}

// put gives a connection back. One that is unusable is closed.
func (p *pool) put(t *torchConn, u use) {
	failpoint.At("tcpstore.pool.put")
	p.mu.Lock()
	delete(p.mu.busy, t)
	if t.unusable || p.mu.closed != nil {
		_ = t.conn.Close()
	} else {
		p.mu.idle[u] = append(p.mu.idle[u], t)
	}
	p.mu.Unlock()
	failpoint.At("tcpstore.pool.free")
	<-p.slots[u]
}

// drop closes a connection that was adopted and has no slot.
func (p *pool) drop(t *torchConn) {
	failpoint.At("tcpstore.pool.drop")
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.busy, t)
	_ = t.conn.Close()
}

// seed adds a connection that is open already.
func (p *pool) seed(t *torchConn) {
	failpoint.At("tcpstore.pool.seed")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.idle[forShort] = append(p.mu.idle[forShort], t)
}

// purge closes the idle connections: one has shown that the server has ended, or had.
func (p *pool) purge() {
	failpoint.At("tcpstore.pool.purge")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.purgeLocked()
}

func (p *pool) purgeLocked() {
	for u := range p.mu.idle {
		for _, t := range p.mu.idle[u] {
			_ = t.conn.Close()
		}
		p.mu.idle[u] = nil
	}
}

// close ends all connections, those in use too, and refuses new ones with reason.
func (p *pool) close(reason error) {
	failpoint.At("tcpstore.close.begin")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed != nil {
		return
	}
	p.mu.closed = reason
	p.end(reason)
	p.purgeLocked()
	for t := range p.mu.busy {
		_ = t.conn.Close()
	}
}

// reason returns why the pool was closed, or nil.
func (p *pool) reason() error {
	failpoint.At("tcpstore.pool.reason")
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.closed
}
