// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Limits of what waits to be sent to one member.
const (
	maxQueued      = 4096
	maxQueuedBytes = 128 << 20
	writeSize      = 256 << 10 // how much is encoded before it is written
)

// queue holds messages for one member. What does not fit is dropped; one message always fits.
type queue struct {
	mu     sync.Mutex
	all    []*raftpb.Message
	bytes  int
	wakeup chan struct{}
}

func (q *queue) put(m *raftpb.Message) {
	size := proto.Size(m)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) >= maxQueued || len(q.all) > 0 && q.bytes+size > maxQueuedBytes {
		return
	}
	q.all = append(q.all, m)
	q.bytes += size
	select {
	case q.wakeup <- struct{}{}:
	default:
	}
}

func (q *queue) take() []*raftpb.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.all
	q.all, q.bytes = nil, 0
	return all
}

// peer is the connection to one other member.
type peer struct {
	links *Links
	id    uint64
	addr  string
	ctx   context.Context //nolint:containedctx // it ends with the membership
	stop  context.CancelFunc
	queue queue
}

func newPeer(l *Links, id uint64, addr string) *peer {
	p := &peer{links: l, id: id, addr: addr, queue: queue{wakeup: make(chan struct{}, 1)}}
	p.ctx, p.stop = context.WithCancel(l.ctx)
	return p
}

// run keeps a connection as long as the member is one.
func (p *peer) run() {
	wait, said := redialFirst, ""
	for p.ctx.Err() == nil {
		c, err := p.links.dial(p.ctx, p.addr, hello{Kind: kindMessages, To: p.id})
		if err == nil {
			wait, said = redialFirst, ""
			err = p.use(c)
			if p.ctx.Err() == nil {
				p.links.config.Handler.Broken(p.ctx, p.id)
			}
		}
		if errors.Is(err, errRemoved) {
			p.links.config.Handler.Removed()
		}
		if text := err.Error(); text != said && p.ctx.Err() == nil {
			said = text
			p.links.config.Log.Info("no connection to a member", slog.String("addr", p.addr), slog.String("reason", text))
		}
		p.queue.take() // too old
		p.pause(wait)
		wait = min(2*wait, redialMost)
	}
}

func (p *peer) pause(d time.Duration) {
	select {
	case <-p.ctx.Done():
	case <-time.After(d):
	}
}

// use writes what is queued until the connection ends.
func (p *peer) use(c net.Conn) error {
	defer context.AfterFunc(p.ctx, func() { _ = c.Close() })()
	done := make(chan struct{})
	defer func() {
		_ = c.Close()
		<-done
	}()
	ended := make(chan error, 1)
	go func() { // the other side says nothing: a read ends when the connection does
		defer close(done)
		_, err := c.Read(make([]byte, 1))
		ended <- endOf(err)
	}()
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		var err error
		select {
		case <-p.ctx.Done():
			return p.ctx.Err()
		case err = <-ended:
		case <-p.queue.wakeup:
			err = p.write(c)
		case <-ping.C:
			_, err = c.Write(frameOf(framePing, nil))
		}
		if err != nil {
			return err
		}
	}
}

// write sends all that is queued, in few writes.
func (p *peer) write(c net.Conn) error {
	var b []byte
	all := p.queue.take()
	for i, m := range all {
		var err error
		if b, err = appendMessage(b, m); err != nil {
			return err
		}
		if len(b) >= writeSize || i == len(all)-1 {
			if _, err = c.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	return nil
}

// keepAlive lets the side that only reads notice a silent host.
func keepAlive(c *net.TCPConn) {
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2})
}
