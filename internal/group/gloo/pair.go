// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloomatch"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloopresence"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// pair is the connection to one peer: a reader goroutine, a writer goroutine for what cannot be written at once, and
// the queue between them and the machine.
type pair struct {
	d    *device
	peer int

	ready     chan struct{} // closed when the pair is connected or has failed for good
	readyOnce sync.Once
	lazyOnce  sync.Once

	// Guarded by d.mu.
	host     string
	native   bool // a Go rank, which understands notices
	left     bool // it sent a goodbye
	role     role
	own      gloowire.Record // what this rank published; lazy mode only
	parked   net.Conn        // arrived before the role was known
	guessed  bool            // what parked wrote could be guessed
	plain    bool            // the peer writes its rank, not the identifier that we published
	conn     net.Conn
	dead     bool  // nothing is sent or received any more
	writeErr error // why nothing is sent any more, while the reader still drains
	out      []outFrame
	writing  bool          // a goroutine owns the batch
	flushed  chan struct{} // set by close: closed when the queue is empty

	// Owned by the goroutine that set writing.
	batch batch

	raw  syscall.RawConn // nil for wrapped connections
	wake chan struct{}   // for the writer goroutine, which then owns the batch
	stop chan struct{}   // closed when the connection ends

	in reader
}

// outFrame is a frame that waits to be written; op is set for data.
type outFrame struct {
	frame gloowire.Frame
	op    *transport.Op
}

func newPair(d *device, peer int) *pair {
	return &pair{d: d, peer: peer, ready: make(chan struct{}), wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (p *pair) markReady() { p.readyOnce.Do(func() { close(p.ready) }) }

// attach makes conn the pair's connection and starts its goroutines. It closes conn when the pair already has one or is
// no longer wanted.
func (p *pair) attach(conn net.Conn) {
	if p.d.cfg.Wrap != nil {
		conn = p.d.cfg.Wrap(p.peer, conn)
	}
	var raw syscall.RawConn
	if c, ok := conn.(syscall.Conn); ok {
		raw, _ = c.SyscallConn()
	}
	failpoint.At("gloo.pair.attach")
	p.d.mu.Lock()
	if p.conn != nil || p.dead || p.d.closing || p.d.machine.Err() != nil {
		p.d.mu.Unlock()
		_ = conn.Close()
		return
	}
	p.conn, p.raw = conn, raw
	p.d.watch.order.add(p.peer, raw)
	p.in.init(conn, &p.d.watch.moved)
	p.d.wg.Add(2)
	claimed := p.claim()
	p.d.mu.Unlock()
	failpoint.At("gloo.pair.attached")
	go p.readLoop()
	go p.writeLoop()
	if claimed {
		p.handOver()
	}
	p.markReady()
	p.d.cfg.Hook.Emit(observe.Event{
		Kind: "gloo.connected", Rank: cohort.Rank(p.d.cfg.Rank), Group: p.d.cfg.Group, Peer: conn.RemoteAddr().String(),
	})
}

func (p *pair) setHost(host string) {
	failpoint.At("gloo.pair.host")
	p.d.mu.Lock()
	p.host, p.native = strings.CutSuffix(host, gloowire.GoMark)
	p.native = p.native && !p.d.cfg.plain
	p.d.mu.Unlock()
}

// address names the peer in errors: host and address, as far as known.
func (p *pair) address() string {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	at := p.host
	if p.conn != nil {
		if at != "" {
			at += " "
		}
		at += p.conn.RemoteAddr().String()
	}
	return at
}

// queue takes a frame from the machine and reports whether there is something to write. Called with d.mu held.
func (p *pair) queue(e *gloomatch.Effect) bool {
	if p.dead || p.writeErr != nil {
		if e.Op != nil {
			e.Op.Complete(p.cause())
		}
		return false
	}
	p.out = append(p.out, outFrame{e.Frame, e.Op})
	return true
}

// cause is why the pair ended. Called with d.mu held.
func (p *pair) cause() error {
	if err := p.d.machine.Err(); err != nil {
		return err
	}
	if err := p.d.machine.PeerError(p.peer); err != nil {
		return err
	}
	if p.writeErr != nil {
		return p.writeErr
	}
	return errClosed()
}

// readLoop reads frames until the connection ends.
func (p *pair) readLoop() {
	defer p.d.wg.Done()
	for {
		if err := p.readFrame(); err != nil {
			_ = p.lose(err)
			return
		}
		p.in.inside = false
	}
}

// readFrame reads one frame and does what follows from it. It never waits for a write.
func (p *pair) readFrame() error {
	f, err := p.in.header()
	if err != nil {
		return err
	}
	d := p.d
	failpoint.At("gloo.pair.read")
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		return p.in.drain()
	}
	if f.Opcode == gloowire.NoticeOpcode {
		native := p.native
		d.mu.Unlock()
		return p.readNotice(f, native)
	}
	op, err := d.machine.Frame(p.peer, f)
	d.finish()
	if err != nil {
		return err
	}
	if f.Opcode != gloowire.Data {
		return nil
	}
	if op == nil {
		d.cfg.Logger.Debug("message dropped: its receive was withdrawn")
		return p.in.discard(f.Length)
	}
	failpoint.At("gloo.pair.payload")
	if err := p.in.payload(op.Buf[:op.N]); err != nil {
		op.N = 0
		op.Complete(p.lose(err))
		return err
	}
	op.Complete(nil)
	return nil
}

// lose ends the pair because its connection ended or cannot be followed any further, and returns the error that the
// pair's ops get.
func (p *pair) lose(cause error) error {
	d := p.d
	code, detail := cohort.PeerLost, ""
	fin := errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF)
	switch c := cohort.CodeOf(cause); {
	case c == cohort.Protocol || c == cohort.Exhausted:
		code = c
	case fin:
		detail = "the peer closed the connection"
	case ctxdial.Reset(cause):
		detail = "the peer reset the connection"
	}
	end := gloopresence.End{Rank: p.peer, Order: d.watch.order.position(p.peer), Undated: true}
	if fin { // the kernel does not report when a reset came
		age, known := sinceLastPacket(p.raw)
		end.Age, end.Undated = age, !known
	}
	end.Seen = d.watch.now()
	failpoint.At("gloo.pair.ended")
	d.mu.Lock()
	certain, left := p.native && !p.in.inside, p.left
	d.mu.Unlock()
	switch {
	case code != cohort.PeerLost:
	case left:
		detail = goodbyeDetail
	case certain:
		detail += " without a shutdown message: its process has died or was cut off"
	}
	err := d.lostError(p, code, cause, detail)
	failpoint.At("gloo.pair.lose")
	d.mu.Lock()
	if p.writeErr != nil || d.machine.Err() != nil || d.machine.PeerError(p.peer) != nil {
		err = p.cause()
	}
	closing := d.closing || d.machine.Err() != nil
	pending := d.machine.Pending(p.peer)
	d.machine.Lost(p.peer, err)
	d.finish()
	p.kill(err)
	if !closing && !left {
		end.Certain, end.Err = certain || code != cohort.PeerLost, err
		d.watch.ended(&end)
	}
	if !closing && (pending || code != cohort.PeerLost) {
		// An end with nothing pending is how every gloo group ends.
		d.cfg.Logger.Warn("gloo peer lost", slog.Int("peer", p.peer), slog.String("err", err.Error()))
		d.cfg.Hook.Emit(observe.Event{
			Kind: "gloo.peer_lost", Rank: cohort.Rank(d.cfg.Rank), Group: d.cfg.Group, Peer: p.address(),
			Err: err,
		})
	}
	return err
}

// kill closes the connection and ends what is queued.
func (p *pair) kill(err error) {
	failpoint.At("gloo.pair.kill")
	p.d.mu.Lock()
	if p.dead {
		p.d.mu.Unlock()
		return
	}
	p.dead = true
	p.dropQueue(err)
	conn, parked := p.conn, p.parked
	p.parked = nil
	p.d.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	if parked != nil {
		_ = parked.Close()
	}
	close(p.stop)
	p.markReady()
}

// dropQueue ends the ops that wait to be written. Called with d.mu held.
func (p *pair) dropQueue(err error) {
	for i := range p.out {
		if op := p.out[i].op; op != nil {
			op.Complete(err)
		}
	}
	clear(p.out)
	p.out = p.out[:0]
	if p.flushed != nil && !p.writing {
		close(p.flushed)
		p.flushed = nil
	}
}

// stopWriting stops writing after a write error. What the peer sent before that is still read; the reader then finds
// the end of the connection, at the latest after the deadline set here.
func (p *pair) stopWriting(cause error) {
	err := p.d.lostError(p, cohort.PeerLost, cause, "writing failed: "+cause.Error())
	failpoint.At("gloo.pair.silence")
	p.d.mu.Lock()
	if p.writeErr == nil {
		p.writeErr = err
	}
	p.dropQueue(err)
	p.d.mu.Unlock()
	_ = p.conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
}

// flushLimit bounds how long Close waits for queued data to leave.
const flushLimit = 2 * time.Second

// close sends what is queued, then a FIN, and reads on for a moment: closing a socket with unread data resets the
// connection, which can destroy data that the peer has not read yet.
func (p *pair) close() {
	last := p.d.watch.goodbye()
	failpoint.At("gloo.pair.closing")
	p.d.mu.Lock()
	conn := p.conn
	if conn == nil || p.dead {
		p.d.mu.Unlock()
		p.kill(errClosed())
		return
	}
	if p.native && p.writeErr == nil {
		f, _ := last.Frame()
		p.out = append(p.out, outFrame{frame: f})
	}
	var flushed chan struct{}
	if p.writing || len(p.out) > 0 {
		flushed = make(chan struct{})
		p.flushed = flushed
	}
	claimed := p.claim()
	p.d.mu.Unlock()
	failpoint.At("gloo.pair.close")
	if claimed {
		p.handOver()
	}
	if flushed != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(flushLimit))
		failpoint.At("gloo.pair.flush")
		select {
		case <-flushed:
		case <-p.stop:
		}
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(p.d.cfg.Linger))
	// The reader ends by the peer's FIN or by the deadline, and kills the pair.
	limit := time.NewTimer(p.d.cfg.Linger + time.Second)
	defer limit.Stop()
	failpoint.At("gloo.pair.linger")
	select {
	case <-p.stop:
	case <-limit.C:
		p.kill(errClosed())
	}
}
