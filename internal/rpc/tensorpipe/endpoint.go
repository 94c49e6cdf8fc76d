// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Endpoint is a worker's end of TensorPipe: one TCP port where pipes arrive, and the dials to other workers. It owns
// every connection in its handshake; an established [Session] belongs to the caller that got it.
type Endpoint struct {
	name         string
	cfg          *config
	ctx          context.Context //nolint:containedctx // the lifetime of the endpoint: its end cancels dials under way
	cancel       context.CancelCauseFunc
	sessions     chan *Session
	work         sync.WaitGroup
	unidentified *unidentified
	refused      dropLog

	mu struct {
		sync.Mutex
		closed    bool
		listener  net.Listener
		pending   map[net.Conn]struct{}   // in handshake
		expected  map[uint64]chan *stream // registered connections that have not arrived
		setups    map[*pipeSetup]struct{} // pipes of peers that are not complete
		peerSlots map[string]*peerSlot    // by worker name: see peers.go
		links     map[*cohortwire.Link]struct{}
	}
}

// Session is an established connection with another worker: a pipe, or among Go workers a link.
type Session struct {
	// Peer is the name that the other worker has sent; of a dialled pipe the address.
	Peer string
	// Dialled is set when this side opened it.
	Dialled bool
	// Pipe is set with a PyTorch worker.
	Pipe *Pipe
	// Link is set with a Go worker. It carries both directions.
	Link *cohortwire.Link

	user atomic.Value // see Claim
}

// Claim makes by the user of the session, if it has none yet. It reports whether by is the user. All users of sessions must be of one type.
func (s *Session) Claim(by any) bool { return s.user.CompareAndSwap(nil, by) || s.user.Load() == by }

// Close ends the session.
func (s *Session) Close() error {
	if s.Link != nil {
		return s.Link.Close()
	}
	return s.Pipe.Close()
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} {
	if s.Link != nil {
		return s.Link.Done()
	}
	return s.Pipe.Done()
}

func (s *Session) alive() bool {
	select {
	case <-s.Done():
		return false
	default:
		return true
	}
}

// New returns an endpoint that only dials, under a worker's name. [Endpoint.Listen] makes it accept too.
func New(name string, opts ...Option) (*Endpoint, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ep := &Endpoint{
		name: name, cfg: cfg, ctx: ctx, cancel: cancel,
		sessions: make(chan *Session, cfg.limits.Backlog), unidentified: newUnidentified(cfg.limits.Halfway),
		refused: dropLog{logger: cfg.logger},
	}
	ep.mu.pending, ep.mu.expected, ep.mu.setups = map[net.Conn]struct{}{}, map[uint64]chan *stream{}, map[*pipeSetup]struct{}{}
	ep.mu.peerSlots, ep.mu.links = map[string]*peerSlot{}, map[*cohortwire.Link]struct{}{}
	return ep, nil
}

// Listen returns an endpoint that accepts pipes on a TCP address, such as "127.0.0.1:0".
func Listen(name, addr string, opts ...Option) (*Endpoint, error) {
	ep, err := New(name, opts...)
	if err != nil {
		return nil, err
	}
	if err := ep.Listen(addr); err != nil {
		_ = ep.Close()
		return nil, err
	}
	return ep, nil
}

// Listen starts to accept pipes. It may be called once.
func (ep *Endpoint) Listen(addr string) error {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(ep.ctx, "tcp", addr)
	if err != nil {
		return cohort.Wrap("tensorpipe: listen", cohort.Unavailable, err)
	}
	failpoint.At("tensorpipe.endpoint.listen")
	ep.mu.Lock()
	if ep.mu.closed || ep.mu.listener != nil {
		ep.mu.Unlock()
		_ = l.Close()
		return cohort.New("tensorpipe: listen", cohort.InvalidArgument, "the endpoint is closed or listens already")
	}
	ep.mu.listener = l
	ep.mu.Unlock()
	ep.work.Go(func() { ep.accept(l) })
	return nil
}

// Addr returns the address the endpoint listens on, or nil.
func (ep *Endpoint) Addr() net.Addr {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.mu.listener == nil {
		return nil
	}
	return ep.mu.listener.Addr()
}

// Close stops listening, ends every handshake and every session of [Endpoint.Connect], links and sessions that were not
// accepted yet, and joins the goroutines. Accepted pipes and those of [Endpoint.Dial] go on. It is idempotent.
func (ep *Endpoint) Close() error {
	ep.cancel(cohort.New("tensorpipe: endpoint", cohort.Closed, "closed")) // first: a goroutine that finds closed set reads the cause
	failpoint.At("tensorpipe.endpoint.close")
	ep.mu.Lock()
	ep.mu.closed = true
	if ep.mu.listener != nil {
		_ = ep.mu.listener.Close()
	}
	for nc := range ep.mu.pending {
		_ = nc.Close()
	}
	ep.mu.Unlock()
	failpoint.At("tensorpipe.endpoint.close.wait")
	ep.work.Wait()
	ep.closeAll()
	for {
		select {
		case s := <-ep.sessions:
			_ = s.Close()
		default:
			return nil
		}
	}
}

// Accept returns the next session that another worker opened.
func (ep *Endpoint) Accept(ctx context.Context) (*Session, error) {
	failpoint.At("tensorpipe.endpoint.accept")
	select {
	case s := <-ep.sessions:
		return s, nil
	case <-ep.ctx.Done():
		return nil, context.Cause(ep.ctx)
	case <-ctx.Done():
		return nil, cohort.FromContext(ctx, "tensorpipe: accept")
	}
}

// hold keeps a connection closable by Close while its handshake runs. It reports false when the endpoint is closed.
func (ep *Endpoint) hold(nc net.Conn) bool {
	failpoint.At("tensorpipe.endpoint.hold")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.mu.closed {
		_ = nc.Close()
		return false
	}
	ep.mu.pending[nc] = struct{}{}
	return true
}

func (ep *Endpoint) release(nc net.Conn) {
	failpoint.At("tensorpipe.endpoint.release")
	ep.mu.Lock()
	delete(ep.mu.pending, nc)
	ep.mu.Unlock()
}

func (ep *Endpoint) accept(l net.Listener) {
	var delay time.Duration
	for {
		failpoint.At("tensorpipe.endpoint.next")
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ep.ctx.Err() != nil {
				return
			}
			// Out of file descriptors, or a connection that ended in the queue: others must still be accepted.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			ep.cfg.logger.Warn("accept", slog.String("err", err.Error()), slog.Duration("retry_in", delay))
			failpoint.At("tensorpipe.endpoint.accept.pause")
			select {
			case <-time.After(delay):
				continue
			case <-ep.ctx.Done():
				return
			}
		}
		delay = 0
		verdict := ep.cfg.judge(nc)
		if verdict == peeruid.Refused {
			_ = nc.Close()
			continue
		}
		x, evicted := ep.unidentified.admit(nc)
		if evicted != nil {
			_ = evicted.conn.Close()
		}
		ep.work.Go(func() {
			defer ep.unidentified.leave(x)
			if verdict == peeruid.Gone {
				_ = nc.Close()
				ep.unread(x)
				return
			}
			if err := ep.serve(nc, x); err != nil {
				_ = nc.Close()
				if ep.ctx.Err() == nil {
					ep.refused.dropped(nc, err)
				}
			}
		})
	}
}

// serve does the listening side's part of the handshake on a new connection.
func (ep *Endpoint) serve(nc net.Conn, x *unidentifiedConn) error {
	if !ep.hold(nc) {
		return nil
	}
	defer ep.release(nc)
	if err := nc.SetDeadline(time.Now().Add(ep.cfg.handshake)); err != nil {
		return err
	}
	s := newStream(nc, ep.cfg.stall)
	failpoint.At("tensorpipe.endpoint.hello")
	frame, err := s.readFrame(maxHandshake, "a hello")
	if err != nil {
		if ctxdial.Ended(err) {
			ep.unread(x)
		}
		return err
	}
	packet, err := parsePacket(frame)
	if err != nil {
		return err
	}
	if packet.Requested {
		return ep.arrived(packet.ID, s)
	}
	if frame, err = s.readFrame(maxHandshake, "a brochure"); err != nil {
		return err
	}
	ep.unidentified.helloReceived(x)
	return ep.open(packet.Name, s, frame)
}

// expect registers one more connection.
func (ep *Endpoint) expect() (uint64, chan *stream) {
	ch := make(chan *stream, 1)
	failpoint.At("tensorpipe.endpoint.expect")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for {
		id := ep.cfg.register()
		if _, taken := ep.mu.expected[id]; !taken {
			ep.mu.expected[id] = ch
			return id, ch
		}
	}
}

// forget drops a registration and closes the connection if it has arrived.
func (ep *Endpoint) forget(id uint64, ch chan *stream) {
	failpoint.At("tensorpipe.endpoint.forget")
	ep.mu.Lock()
	delete(ep.mu.expected, id)
	ep.mu.Unlock()
	select {
	case s := <-ch:
		_ = s.nc.Close()
	default:
	}
}

// arrived hands a requested connection to the pipe that waits for it.
func (ep *Endpoint) arrived(id uint64, s *stream) error {
	failpoint.At("tensorpipe.endpoint.arrived")
	ep.mu.Lock()
	ch, ok := ep.mu.expected[id]
	delete(ep.mu.expected, id)
	if ok {
		ep.notifySetupsLocked(hostOf(s.nc))
		ch <- s
	}
	ep.mu.Unlock()
	if !ok {
		return cohort.Newf("tensorpipe: handshake", cohort.Protocol, "unexpected connection id %d", id)
	}
	return nil
}

// open answers a brochure and waits for the connections the answer asks for.
func (ep *Endpoint) open(peer string, s *stream, brochure []byte) error {
	o := ep.beginSetup(peer, s)
	defer o.forget()
	var number uint64
	var peerSlot *peerSlot // kept for the link, so that we do not dial the same peer meanwhile
	choice := chooser{
		Channels: ep.cfg.accepts, Address: o.address, Register: o.register,
		Cohort: ep.cfg.cohort != nil && peer != ep.name,
		Defer:  func(offer cohortAd) bool { peerSlot, number = ep.reserve(peer, offer); return peerSlot == nil },
	}
	answer, plan, err := choice.Choose(brochure)
	if err != nil {
		return err
	}
	if plan.Cohort && !plan.Defer {
		defer ep.unreserve(peer, peerSlot)
	}
	if err = s.writeFrames(answer); err != nil {
		return err
	}
	switch {
	case plan.Defer:
		_ = s.nc.Close()
		return nil
	case plan.Cohort:
		return ep.accepted(peer, peerSlot, number, s)
	}
	if err = o.pipe(s, plan); err != nil {
		for _, x := range o.got {
			_ = x.nc.Close()
		}
	}
	return err
}
