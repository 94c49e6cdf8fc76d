// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/recvalloc"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Config is what a link needs to know. OnFrame is required.
type Config struct {
	// Identity is this worker's.
	Identity Identity
	// Secret is what this worker has published under its name. Without it the link gives no proof.
	Secret []byte
	// Published returns the secret that a worker has published under its name, or nil for a name that has published none.
	// The other side of a link must know it; see [Link.Proven]. It is called once, before the link starts, and may take
	// its time. Nil checks nothing.
	Published func(Identity) ([]byte, error)
	// Dialled is set when this side has dialled. The sides of a link differ in it.
	Dialled bool
	// OnFrame gets every frame, in order, in the goroutine that reads: it must not block, and it owns the frame.
	OnFrame func(*Link, *Frame)
	// MayPassOn reports which types of frames OnFrame handles at once and without running code of the program. A caller that reads
	// its own answer passes these on, too. The default is none.
	MayPassOn func(Type) bool
	// OnClose is called once, when the link has ended, with the reason.
	OnClose func(*Link, error)
	// Heartbeat is how often each side sends a ping, Limit after how long without data a peer is given up. The
	// defaults are one second and ten. A Limit below zero turns this off.
	Heartbeat, Limit time.Duration
	Limits           Limits
	// Alloc provides the memory of received storages, such as a pool. The default is the heap.
	Alloc func(n int) (*tensor.Storage, error)
	// Ahead bounds what is allocated for storages that have not arrived, for all links that share it. Nil means a budget of
	// this link's own.
	Ahead  *recvalloc.Budget
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
	if c.Ahead == nil {
		c.Ahead = recvalloc.NewBudget(0)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Limits = c.Limits.withDefaults()
	return c
}

// Link is the one connection of a pair of Go workers. All methods are safe for concurrent use.
type Link struct {
	cfg    Config
	peer   Identity
	proven bool
	conn   net.Conn
	raw    syscall.RawConn // for a write that does not wait; nil when the connection is not a socket

	reads    atomic.Uint64 // grows with every read that returned bytes
	inFlight atomic.Int64  // requests of ours without an answer, and requests of the peer that were not answered yet
	closed   chan struct{}
	work     sync.WaitGroup
	kick     chan struct{} // wakes the flusher
	reader   *frameReader  // used by the goroutine whose turn it is
	turns    turns
	spare    chan uint64  // wakes a goroutine that waits for its next turn
	spares   atomic.Int64 // how many wait
	corked   atomic.Bool  // answers are collected
	borrow   borrowing

	out struct { // what waits to be written
		sync.Mutex
		queue
	}
	try struct { // used by the goroutine that has the right to write
		b  []byte
		n  int
		fn func(fd uintptr) bool
	}

	mu struct {
		sync.Mutex
		err error // why the link ended
	}
}

// Start exchanges hellos and proofs over a connection whose handshake is done and starts the link. buffered are bytes that
// were read from conn already. It takes over conn, also when it fails. A deadline on conn bounds the exchange; it is cleared.
func Start(conn net.Conn, buffered []byte, cfg Config) (*Link, error) {
	l := &Link{cfg: cfg.withDefaults(), conn: conn, closed: make(chan struct{}), kick: make(chan struct{}, 1), spare: make(chan uint64)}
	l.out.room = make(chan struct{})
	l.borrow.returned = make(chan struct{}, 1)
	l.borrow.guard = time.AfterFunc(time.Hour, l.checkBorrow)
	l.borrow.guard.Stop()
	r := newFrameReader(l, conn, buffered)
	err := l.handshake(r)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, cohort.Wrap("cohort transport: hello", cohort.PeerLost, err)
	}
	if sc, ok := conn.(syscall.Conn); ok && rawSockets {
		if raw, rawErr := sc.SyscallConn(); rawErr == nil {
			l.raw = raw
			l.try.fn = l.writeNow
		}
	}
	tuneLocal(conn)
	l.reader = r
	l.work.Add(1)
	go l.reading(0)
	l.work.Go(l.flush)
	l.work.Go(l.watch)
	return l, nil
}

// handshake exchanges hellos, then proofs.
func (l *Link) handshake(r *frameReader) error {
	own := newNonce()
	failpoint.At("cohortwire.link.hello")
	hello, err := l.exchange(r, l.cfg.Identity.frame(own))
	if err != nil {
		return err
	}
	var far nonce
	if l.peer, far, err = parseHello(hello); err != nil {
		return err
	}
	ours := proof{of: l.cfg.Identity, to: l.peer, own: own, far: far, dialled: l.cfg.Dialled}
	failpoint.At("cohortwire.link.proof")
	frame, err := l.exchange(r, &Frame{Type: proofFrame, Incarnation: l.cfg.Identity.Incarnation, Payload: ours.sum(l.cfg.Secret)})
	if err != nil {
		return err
	}
	var published []byte
	if l.cfg.Published != nil {
		if published, err = l.cfg.Published(l.peer); err != nil {
			return err
		}
	}
	theirs := proof{of: l.peer, to: l.cfg.Identity, own: far, far: own, dialled: !l.cfg.Dialled}
	l.proven, err = theirs.check(frame, published)
	return err
}

// exchange writes a frame and reads one. Both sides write first, and a connection without buffers needs both to read
// meanwhile.
func (l *Link) exchange(r *frameReader, f *Frame) (*Frame, error) {
	out := append(f.AppendHead(nil), f.Payload...)
	sent := make(chan error, 1)
	go func() {
		failpoint.At("cohortwire.link.exchange")
		_, err := l.conn.Write(out)
		sent <- err
	}()
	got, err := r.opening()
	if err != nil {
		_ = l.conn.Close()
		failpoint.At("cohortwire.link.exchange.failed")
		<-sent
		return nil, err
	}
	failpoint.At("cohortwire.link.exchanged")
	return got, <-sent
}

// Peer returns what the other side sent in its hello.
func (l *Link) Peer() Identity { return l.peer }

// Proven reports whether the other side has shown that it knows the secret which its name has published.
func (l *Link) Proven() bool { return l.proven }

// RemoteAddr returns the address of the other side.
func (l *Link) RemoteAddr() net.Addr { return l.conn.RemoteAddr() }

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.closed }

// Err says why the link ended, or nil while it lives.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

// Close sends a goodbye, ends the link and joins its goroutines. It is idempotent. It must not be called from OnFrame or
// OnClose.
func (l *Link) Close() error {
	failpoint.At("cohortwire.link.close")
	bye := &Frame{Type: goodbyeFrame, Payload: []byte("closed"), Incarnation: l.cfg.Identity.Incarnation}
	l.control(bye)
	l.fail(cohort.New("cohort transport: link", cohort.Closed, "closed"))
	l.work.Wait()
	return nil
}

// fail ends the link with the first cause and wakes all waiters. The link is done when any call of it returns: a caller that reports a
// second cause reports the end, too.
func (l *Link) fail(err error) {
	failpoint.At("cohortwire.link.fail")
	l.mu.Lock()
	if l.mu.err != nil {
		l.mu.Unlock()
		return
	}
	l.mu.err = err
	close(l.closed)
	l.mu.Unlock()
	_ = l.conn.Close()
	l.ReclaimReader()
}

func (l *Link) lost(err error) error {
	e := cohort.Wrap("cohort transport", cohort.PeerLost, err)
	e.Peer = l.peer.Name
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Detail = "the peer closed the connection"
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Code, e.Detail = cohort.PeerLost, "the peer does not read"
	}
	return e
}

// read is the reading goroutine. turn is even while it reads and one more during OnFrame. It reports true when it has handed over
// to the next one, and false when the link has ended.
func (l *Link) read(turn uint64) (handed bool) {
	var cause error
	for {
		l.waitForReader()
		if !l.reader.whole() {
			l.uncork()
		}
		failpoint.At("cohortwire.link.read")
		f, err := l.reader.next()
		if err != nil {
			cause = l.lost(err)
			break
		}
		switch f.Type {
		case pingFrame:
			l.control(&Frame{Type: pongFrame, ID: f.ID, Incarnation: l.cfg.Identity.Incarnation})
			continue
		case pongFrame:
			continue
		case goodbyeFrame:
			e := cohort.New("cohort transport", cohort.PeerLost, "the peer shut the connection down")
			e.Peer = l.peer.Name
			cause = e
		case Hello, proofFrame:
			cause = bad("a second hello")
		default:
			if f.Type > proofFrame && f.Type < FirstAgentType {
				continue // of a later version of this transport
			}
			if f.isRequest() {
				l.inFlight.Add(1)
			} else if f.isAnswer() {
				l.inFlight.Add(-1)
			}
			if l.reader.whole() {
				l.cork()
			}
			f.BufferEmpty = l.reader.r == l.reader.w // not later: in OnFrame the reader may be another goroutine's
			if !l.mayPassOn(f.Type) {
				l.borrow.before, l.borrow.streak = l.borrow.streak, 0
			}
			l.turns.begin(turn + 1)
			l.cfg.OnFrame(l, f)
			if turn += 2; !l.turns.end(turn) {
				return true // another goroutine reads on
			}
			continue
		}
		break
	}
	l.fail(cause)
	if l.cfg.OnClose != nil {
		l.cfg.OnClose(l, l.Err())
	}
	return false
}

// watch is the failure detector: it sends pings and gives a silent peer up in the end. Only bytes that came from the peer count:
// a kernel takes bytes for a peer that has exited for as long as it has room. So a ping is sent also while the peer sends.
// It may be sending a long message, behind which its own pings and pongs wait, and receive nothing else from here.
func (l *Link) watch() {
	if l.cfg.Limit < 0 {
		return
	}
	tick := time.NewTicker(l.cfg.Heartbeat)
	defer tick.Stop()
	l.watchWith(tick.C)
}

// watchWith is watch with the ticks of a clock. It counts ticks and not time: if this process stood still too, the time
// proves nothing about the peer, and what has come from it may still wait to be read.
func (l *Link) watchWith(ticks <-chan time.Time) {
	last, silent := l.reads.Load(), time.Duration(0)
	for {
		failpoint.At("cohortwire.link.watch")
		select {
		case <-l.closed:
			return
		case <-ticks:
		}
		silent += l.cfg.Heartbeat
		if n := l.reads.Load(); n != last {
			last, silent = n, 0
		}
		if silent >= l.cfg.Limit {
			e := cohort.Newf("cohort transport", cohort.PeerLost, "nothing received for %v (limit %v)", silent, l.cfg.Limit)
			e.Peer = l.peer.Name
			l.fail(e)
			return
		}
		l.control(&Frame{Type: pingFrame, Incarnation: l.cfg.Identity.Incarnation})
	}
}

// localBuffer is the send buffer between two workers of one host. The kernel gives no more than net.core.wmem_max, of which many
// systems have 208 KiB.
const localBuffer = 768 << 10

// tuneLocal prepares a connection within the host. Its send buffer, which the kernel doubles, takes a tensor of 1 MiB
// at once if the kernel gives it whole, so that its writer need not wait in between, and is bounded: what is on its way
// stays in the cache, where the kernel's own choice of several megabytes makes both copies go through memory. Between
// hosts the buffer must hold what the network has under way, so there the kernel chooses.
func tuneLocal(conn net.Conn) {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	local, lok := c.LocalAddr().(*net.TCPAddr)
	remote, rok := c.RemoteAddr().(*net.TCPAddr)
	if lok && rok && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP)) {
		_ = c.SetWriteBuffer(localBuffer) // only speed depends on it
		disablePacing(c)
	}
}
