// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/tensor"
)

// Config is what a link needs to know. OnFrame is required.
type Config struct {
	// Identity is this worker's.
	Identity Identity
	// OnFrame gets every frame that is not the answer to a [Link.Call], in order, in the goroutine that reads: it must
	// not block, and it owns the frame.
	OnFrame func(*Link, *Frame)
	// Aside tells which types of frames OnFrame deals with at once and without running anybody's code. A caller that reads
	// its own answer passes these on, too. The default is none.
	Aside func(Type) bool
	// OnClose is called once, when the link has ended, with the reason.
	OnClose func(*Link, error)
	// Heartbeat is how often each side gives a sign of life and asks for one, Limit when a silent peer is given up. The
	// defaults are one second and ten. A Limit below zero turns this off.
	Heartbeat, Limit time.Duration
	Limits           Limits
	// Alloc provides the memory of received storages, such as a pool. The default is the heap.
	Alloc  func(n int) (*tensor.Storage, error)
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Heartbeat <= 0 {
		c.Heartbeat = time.Second
	}
	if c.Limit == 0 {
		c.Limit = 10 * time.Second
	}
	if c.Alloc == nil {
		c.Alloc = tensor.NewStorage
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Limits = c.Limits.withDefaults()
	return c
}

// Link is the one connection of a pair of Go workers. All methods are safe for concurrent use.
type Link struct {
	cfg  Config
	peer Identity
	conn net.Conn
	raw  syscall.RawConn // for a write that does not wait; nil when the connection is not a socket

	nextID  atomic.Uint64
	reads   atomic.Uint64 // grows with every read that brought bytes: the peer's sign of life
	load    atomic.Int64  // calls of ours that wait, and requests of the peer that were not answered yet
	closed  chan struct{}
	work    sync.WaitGroup
	kick    chan struct{} // wakes the flusher
	reader  *frameReader  // used by the goroutine whose turn it is
	turn    atomic.Uint64
	handing sync.Mutex  // held while the reading is handed over
	corked  atomic.Bool // answers are collected
	kept    atomic.Bool // frames that nobody waits for were queued
	lend    lending

	wmu     sync.Mutex
	wq      queue
	holding holding
	try     struct { // used by whoever has the right to write
		b  []byte
		n  int
		fn func(fd uintptr) bool
	}

	mu    sync.Mutex
	err   error
	calls map[uint64]chan *Frame
}

// Start exchanges hellos over a connection whose handshake is done and starts the link. buffered are bytes that were
// read from conn already. It takes over conn, also when it fails. A deadline on conn bounds the hello; it is cleared.
func Start(conn net.Conn, buffered []byte, cfg Config) (*Link, error) {
	l := &Link{
		cfg: cfg.withDefaults(), conn: conn, closed: make(chan struct{}), kick: make(chan struct{}, 1),
		calls: map[uint64]chan *Frame{},
	}
	l.wq.room = make(chan struct{})
	l.lend.back = make(chan struct{}, 1)
	l.lend.guard = time.AfterFunc(time.Hour, l.look)
	l.lend.guard.Stop()
	fail := func(err error) (*Link, error) {
		_ = conn.Close()
		return nil, dist.Wrap("cohort transport: hello", dist.PeerLost, err)
	}
	hello := l.cfg.Identity.frame()
	out := append(hello.AppendHead(nil), hello.Payload...)
	sent := make(chan error, 1)
	go func() { // both sides write first; a connection without buffers needs both to read meanwhile
		_, err := conn.Write(out)
		sent <- err
	}()
	r := newFrameReader(l, conn, buffered)
	f, err := r.next()
	if err != nil {
		_ = conn.Close()
		<-sent
		return fail(err)
	}
	if err = <-sent; err != nil {
		return fail(err)
	}
	if l.peer, err = ParseHello(f); err != nil {
		return fail(err)
	}
	if err = conn.SetDeadline(time.Time{}); err != nil {
		return fail(err)
	}
	if sc, ok := conn.(syscall.Conn); ok && rawSockets {
		if raw, rawErr := sc.SyscallConn(); rawErr == nil {
			l.raw = raw
			l.try.fn, r.try.fn = l.writeNow, r.readNow
		}
	}
	keepInCache(conn)
	l.reader = r
	l.work.Go(func() { l.read(0) })
	l.work.Go(l.flush)
	l.work.Go(l.watch)
	return l, nil
}

// Peer returns what the other side said in its hello.
func (l *Link) Peer() Identity { return l.peer }

// RemoteAddr returns the address of the other side.
func (l *Link) RemoteAddr() net.Addr { return l.conn.RemoteAddr() }

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.closed }

// Err says why the link ended, or nil while it lives.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close says goodbye, ends the link and joins its goroutines. It is idempotent. It must not be called from OnFrame or
// OnClose.
func (l *Link) Close() error {
	bye := &Frame{Type: Goodbye, Payload: []byte("closed"), Incarnation: l.cfg.Identity.Incarnation}
	l.control(bye)
	l.fail(dist.New("cohort transport: link", dist.Closed, "closed"))
	l.work.Wait()
	return nil
}

// fail ends the link with the first cause and wakes everybody.
func (l *Link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	calls := l.calls
	l.calls = nil
	l.mu.Unlock()
	close(l.closed)
	_ = l.conn.Close()
	l.Recall()
	for _, ch := range calls {
		close(ch)
	}
}

func (l *Link) lost(err error) error {
	e := dist.Wrap("cohort transport", dist.PeerLost, err)
	e.Peer = l.peer.Name
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Detail = "the peer closed the connection"
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Code, e.Detail = dist.PeerLost, "the peer takes no data"
	}
	return e
}

// read is the reading goroutine. turn is even while it reads and one more during OnFrame; it ends when it has handed over to
// the next one.
func (l *Link) read(turn uint64) {
	var cause error
	for {
		l.mine()
		if !l.reader.whole() {
			l.uncork()
		}
		f, err := l.reader.next()
		if err != nil {
			cause = l.lost(err)
			break
		}
		if f.Type.IsResponse() {
			l.mu.Lock()
			ch := l.calls[f.ID]
			delete(l.calls, f.ID)
			l.mu.Unlock()
			if ch != nil {
				ch <- f // has room: one answer per call
				continue
			}
		}
		switch f.Type {
		case Ping:
			l.control(&Frame{Type: Pong, ID: f.ID, Incarnation: l.cfg.Identity.Incarnation})
			continue
		case Pong:
			continue
		case Goodbye:
			e := dist.New("cohort transport", dist.PeerLost, "the peer said goodbye")
			e.Peer = l.peer.Name
			cause = e
		case Hello:
			cause = bad("a second hello")
		default:
			if f.Type > Goodbye && f.Type < FirstAgentType {
				continue // of a later version of this transport
			}
			if f.isRequest() {
				l.load.Add(1)
			}
			if l.reader.whole() {
				l.cork()
				f.Next = l.reader.last()
			}
			f.Quiet = l.reader.r == l.reader.w // not later: in OnFrame the reader may be another goroutine's
			if !l.aside(f.Type) {
				l.lend.before, l.lend.streak = l.lend.streak, 0
			}
			l.turn.Store(turn + 1)
			l.cfg.OnFrame(l, f)
			if turn += 2; !l.turn.CompareAndSwap(turn-1, turn) {
				l.handing.Lock() // Close must find one of the two
				defer l.handing.Unlock()
				return
			}
			continue
		}
		break
	}
	l.fail(cause)
	if l.cfg.OnClose != nil {
		l.cfg.OnClose(l, l.Err())
	}
}

// watch gives signs of life, asks for them, and gives a silent peer up in the end. Only bytes that came from the peer count:
// a kernel takes bytes for a peer that has gone for as long as it has room. So a ping goes out also while the peer is heard.
// It may be sending a long message, behind which its own pings and pongs wait, and hear nothing else from here.
func (l *Link) watch() {
	if l.cfg.Limit < 0 {
		return
	}
	tick := time.NewTicker(l.cfg.Heartbeat)
	defer tick.Stop()
	last, heard := l.reads.Load(), time.Now()
	for {
		select {
		case <-l.closed:
			return
		case <-tick.C:
		}
		if n := l.reads.Load(); n != last {
			last, heard = n, time.Now()
		}
		if silent := time.Since(heard); silent >= l.cfg.Limit {
			e := dist.Newf("cohort transport", dist.PeerLost, "no sign of life for %v (limit %v)", silent.Round(time.Millisecond), l.cfg.Limit)
			e.Peer = l.peer.Name
			l.fail(e)
			return
		}
		l.control(&Frame{Type: Ping, Incarnation: l.cfg.Identity.Incarnation})
	}
}

// NewID returns a fresh id for a request on this link.
func (l *Link) NewID() uint64 { return l.nextID.Add(1) }

var answers = sync.Pool{New: func() any { return make(chan *Frame, 1) }} // channels without content: no shared state

// Call sends a request under a fresh id and waits for its answer: the frame of a response type with that id. When ctx
// ends first the answer is dropped when it comes; telling the callee is the agent's business.
func (l *Link) Call(ctx context.Context, f *Frame) (*Frame, error) {
	f.ID = l.NewID()
	ch := answers.Get().(chan *Frame) //nolint:errcheck,forcetypeassert // only channels are put there
	l.mu.Lock()
	if l.calls == nil {
		l.mu.Unlock()
		return nil, l.Err()
	}
	l.calls[f.ID] = ch
	l.mu.Unlock()
	l.load.Add(1)
	defer l.load.Add(-1)
	if err := l.Send(ctx, f); err != nil {
		l.forget(f.ID, ch)
		return nil, err
	}
	l.Recall()
	select {
	case answer, ok := <-ch:
		if !ok {
			return nil, l.Err()
		}
		answers.Put(ch)
		return answer, nil
	case <-ctx.Done():
		l.forget(f.ID, ch)
		return nil, dist.FromContext("cohort transport: call", ctx)
	}
}

// forget gives up a call. An answer that is just arriving is released.
func (l *Link) forget(id uint64, ch chan *Frame) {
	l.mu.Lock()
	_, waiting := l.calls[id]
	delete(l.calls, id)
	l.mu.Unlock()
	if waiting {
		answers.Put(ch)
		return
	}
	select {
	case f := <-ch:
		if f != nil {
			f.Release()
		}
	default:
	}
}
