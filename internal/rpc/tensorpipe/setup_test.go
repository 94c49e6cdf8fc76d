// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// cut says where a connection ends: when so many bytes have gone in one direction of the nth connection.
type cut struct {
	conn  int
	up    bool // counts what the dialling side sends
	after int
	reset bool // the connection ends without a shutdown message
}

func (c cut) String() string {
	direction, how := "down", "closed"
	if c.up {
		direction = "up"
	}
	if c.reset {
		how = "reset"
	}
	return fmt.Sprintf("connection %d %s after %d bytes %s", c.conn, how, c.after, direction)
}

// cutter passes connections on, counts their bytes, and cuts one of them where its cut says.
type cutter struct {
	listener net.Listener
	target   string
	at       cut
	work     sync.WaitGroup

	mu struct {
		sync.Mutex
		open  []net.Conn
		bytes map[cut]int // by connection and direction
	}
}

// newCutter listens; serve begins to pass on.
func newCutter(at cut) (*cutter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{listener: l, at: at}
	c.mu.bytes = map[cut]int{}
	return c, nil
}

func (c *cutter) serve(target string) {
	c.target = target
	c.work.Go(func() {
		for n := 0; ; n++ {
			client, err := c.listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", c.target)
			if err != nil {
				_ = client.Close()
				continue
			}
			c.mu.Lock()
			c.mu.open = append(c.mu.open, client, server)
			c.mu.Unlock()
			c.work.Go(func() { c.pass(cut{conn: n, up: true}, server, client) })
			c.work.Go(func() { c.pass(cut{conn: n}, client, server) })
		}
	})
}

// pass copies one direction byte by byte.
func (c *cutter) pass(way cut, to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	here := c.at.conn == way.conn && c.at.up == way.up
	b := make([]byte, 1)
	for n := 0; ; n++ {
		if here && n == c.at.after {
			if c.at.reset {
				_ = to.(*net.TCPConn).SetLinger(0)   //nolint:errcheck,forcetypeassert // TCP connections
				_ = from.(*net.TCPConn).SetLinger(0) //nolint:errcheck,forcetypeassert // TCP connections
			}
			return
		}
		if _, err := io.ReadFull(from, b); err != nil {
			return
		}
		if _, err := to.Write(b); err != nil {
			return
		}
		c.mu.Lock()
		c.mu.bytes[way]++
		c.mu.Unlock()
	}
}

func (c *cutter) close() {
	_ = c.listener.Close()
	c.mu.Lock()
	for _, nc := range c.mu.open {
		_ = nc.Close()
	}
	c.mu.Unlock()
	c.work.Wait()
}

// setUp dials once through a cutter. Both sides must come to know the end of what was cut.
func setUp(t *testing.T, channel string, at cut) (bytes map[cut]int) {
	t.Helper()
	relay, err := newCutter(at)
	if err != nil {
		t.Error(err)
		return nil
	}
	stop := sync.OnceFunc(relay.close)
	defer stop()
	// What is noticed by the end of a timeout is noticed too late.
	opts := []Option{WithChannels(channel), withHandshakeTimeout(time.Hour), withStallTimeout(time.Hour)}
	a, err := Listen("a", "127.0.0.1:0", opts...)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = a.Close() }()
	b, err := Listen("b", "127.0.0.1:0", append(opts, WithAdvertisedAddress(relay.listener.Addr().String()))...)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = b.Close() }()
	relay.serve(b.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	s, err := a.Dial(ctx, relay.listener.Addr().String())
	if ctx.Err() != nil {
		t.Errorf("%v: the dial does not end", at)
		return nil
	}
	if at.conn < 0 {
		if err != nil {
			t.Fatal(err)
		}
		got, acceptErr := b.Accept(ctx)
		if acceptErr != nil {
			t.Fatal(acceptErr)
		}
		_, _ = s.Close(), got.Close()
		stop()
		return relay.mu.bytes
	}
	if err == nil {
		if _, err = s.Pipe.Recv(ctx); ctx.Err() != nil {
			t.Errorf("%v: the dialling side does not notice: %v", at, err)
		}
		_ = s.Close()
	}
	if !relay.passed(ctx) {
		t.Errorf("%v: the listening side does not take what has come", at)
		return nil
	}
	for !b.settled() {
		select {
		case got := <-b.sessions:
			if _, err = got.Pipe.Recv(ctx); ctx.Err() != nil {
				t.Errorf("%v: the listening side does not notice: %v", at, err)
			}
			_ = got.Close()
		case <-ctx.Done():
			t.Errorf("%v: the listening side still waits", at)
			return nil
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// passed waits until the listening side has taken all connections that the cutter passes on: it takes them in order, and drops
// one that is not expected.
func (c *cutter) passed(ctx context.Context) bool {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", c.listener.Addr().String())
	if err != nil {
		return false
	}
	defer func() { _ = nc.Close() }()
	defer context.AfterFunc(ctx, func() { _ = nc.Close() })()
	_, _ = nc.Write(appendFrame(nil, packetFrame{Requested: true, ID: 1}.Append(nil)))
	_, _ = io.Copy(io.Discard, nc)
	return ctx.Err() == nil
}

// settled reports that nothing is half done.
func (ep *Endpoint) settled() bool {
	ep.unidentified.mu.Lock()
	defer ep.unidentified.mu.Unlock()
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return len(ep.unidentified.mu.list) == 0 && len(ep.mu.pending) == 0 && len(ep.mu.expected) == 0 && len(ep.sessions) == 0
}

// TestCutDuringSetUp cuts each connection of a pipe at each byte of its set-up, in both directions.
func TestCutDuringSetUp(t *testing.T) {
	for _, channel := range []string{ChannelBasic, ChannelMPT} {
		t.Run(channel, func(t *testing.T) {
			lengths := setUp(t, channel, cut{conn: -1})
			var wg sync.WaitGroup
			defer wg.Wait()
			peerSlots := make(chan struct{}, 32)
			for way, length := range lengths {
				for after := range length + 1 {
					// The sixteen lanes are set up alike; of long frames the edges matter.
					if channel == ChannelMPT && (way.conn > 4 || after > 10 && after < length-2) {
						continue
					}
					at := cut{conn: way.conn, up: way.up, after: after, reset: after%2 == 0}
					peerSlots <- struct{}{}
					wg.Go(func() {
						defer func() { <-peerSlots }()
						setUp(t, channel, at)
					})
				}
			}
		})
	}
}

// TestLastAnswerIsReceived: the end of the other connections does not overtake what was sent before the pipe was closed,
// however late it is received.
func TestLastAnswerIsReceived(t *testing.T) {
	client, server := pair(t)
	ctx := within(t)
	if err := client.Send(ctx, rpcMessage(0x102, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	if err := server.Send(ctx, rpcMessage(0x203, 1, nil, pattern(1000))); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	client.work.Wait() // the ends have been seen, where they are watched
	if m, err := client.Recv(ctx); err != nil || len(m.Storages) != 1 {
		t.Fatalf("the last answer: %v, %v", m, err)
	}
	if _, err := client.Recv(ctx); !errors.Is(err, cohort.PeerLost) {
		t.Fatalf("after it: %v", err)
	}
}

// TestLongLastAnswerIsReceived: the end of the main connection cannot come before the receiver has read what stands before it, however
// long ago the others have ended.
func TestLongLastAnswerIsReceived(t *testing.T) {
	client, server := pair(t)
	ctx := within(t)
	// The client's kernel takes less than the answer, the server's has room for the rest.
	dialled, ok := client.main.nc.(*net.TCPConn)
	if !ok {
		t.Fatalf("the dialling side has a %T", client.main.nc)
	}
	if err := dialled.SetReadBuffer(128 << 10); err != nil {
		t.Fatal(err)
	}
	if err := client.Send(ctx, rpcMessage(0x102, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	want := pattern(1 << 20)
	if err := server.Send(ctx, rpcMessage(0x203, 1, want)); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	select {
	case <-client.Done():
		t.Fatalf("the pipe has ended with an answer in it: %v", client.Err())
	case <-time.After(2 * endGrace):
	}
	if m, err := client.Recv(ctx); err != nil || !bytes.Equal(m.Payloads[2], want) {
		t.Fatalf("the last answer: %v", err)
	}
	if _, err := client.Recv(ctx); !errors.Is(err, cohort.PeerLost) {
		t.Fatalf("after it: %v", err)
	}
}

// withLimits bounds what peers may send.
func withLimits(l peerLimits) Option {
	return option(func(c *config) error { c.limits = l; return nil })
}

// withHandshakeTimeout bounds how long a peer may take to establish a pipe. The default is 20 seconds.
func withHandshakeTimeout(d time.Duration) Option {
	return option(func(c *config) error { c.handshake = d; return nil })
}

// withStallTimeout is how long a peer may read nothing before its connection is closed. The default is 60 seconds.
func withStallTimeout(d time.Duration) Option {
	return option(func(c *config) error { c.stall = d; return nil })
}
