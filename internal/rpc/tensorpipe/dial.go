// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Dial opens a pipe to the worker at addr: "host:port", or the "uv://host:port" that PyTorch publishes.
//
// A PyTorch listener that sees a connection end before its hello is complete closes for good. So a dial that was begun
// goes on in the background when ctx ends, until the pipe is established, and closes it then; only [Endpoint.Close]
// cuts it short.
//
// Dial always speaks TensorPipe and the session is the caller's. [Endpoint.Connect] also speaks the cohort transport.
func (ep *Endpoint) Dial(ctx context.Context, addr string) (*Session, error) {
	addr = strings.TrimPrefix(addr, "uv://")
	type result struct {
		session *Session
		err     error
	}
	done := make(chan result, 1)
	var settled atomic.Bool // set by whichever comes first: the result, or the end of ctx
	failpoint.At("tensorpipe.dial.begin")
	ep.mu.Lock()
	if ep.mu.closed {
		ep.mu.Unlock()
		return nil, cohort.New("tensorpipe: dial", cohort.Closed, "the endpoint is closed")
	}
	ep.work.Go(func() {
		s, _, err := ep.dial(addr, false, false)
		if settled.CompareAndSwap(false, true) {
			done <- result{s, err}
		} else if s != nil {
			_ = s.Close()
		}
	})
	ep.mu.Unlock()
	failpoint.At("tensorpipe.dial.wait")
	select {
	case r := <-done:
		return r.session, r.err
	case <-ctx.Done():
		if !settled.CompareAndSwap(false, true) {
			r := <-done
			return r.session, r.err
		}
		return nil, cohort.FromContext(ctx, "tensorpipe: dial")
	}
}

// dial opens a session. It reports wait when the peer is a Go worker that is dialling us: its connection is used.
// A dial that insists is accepted although the peer still has a link.
func (ep *Endpoint) dial(addr string, goPeer, insist bool) (session *Session, wait bool, err error) {
	fail := func(err error) (*Session, bool, error) {
		e := cohort.Wrap("tensorpipe: dial", cohort.Unavailable, err)
		e.Peer = addr
		return nil, false, e
	}
	s, err := ep.connect(addr)
	if err != nil {
		return fail(err)
	}
	defer ep.release(s.nc)
	opened := []*stream{s}
	closeAll := func() {
		for _, x := range opened {
			_ = x.nc.Close()
		}
	}
	more := func(address string, id uint64) (*stream, error) {
		x, dialErr := ep.connect(address)
		if dialErr != nil {
			return nil, dialErr
		}
		defer ep.release(x.nc)
		opened = append(opened, x)
		return x, x.writeFrames(packetFrame{Requested: true, ID: id}.Append(nil))
	}
	offer := offerer{Name: ep.name, Channels: ep.cfg.offers}
	if goPeer && ep.cfg.cohort != nil {
		offer.Cohort = &cohortAd{Incarnation: ep.cfg.cohort.Identity.Incarnation, Insist: insist}
	}
	session, wait, err = ep.negotiate(addr, s, offer, more)
	if err != nil || wait {
		closeAll()
		if err != nil {
			return fail(err)
		}
		return nil, true, nil
	}
	if session.Link != nil { // the first connection has ended cleared its deadline, and may have ended since
		return session, false, nil
	}
	for _, x := range opened {
		if err := x.nc.SetDeadline(time.Time{}); err != nil { // the endpoint closes
			_ = session.Close()
			return fail(err)
		}
	}
	return session, false, nil
}

// connect opens a TCP connection. Its time limit is the system's own: a limit of ours could cut a connection that the
// other side has just accepted, which a PyTorch listener does not survive. Where the system can be told how often to retry a
// machine that does not answer, it gives up after 15 seconds.
func (ep *Endpoint) connect(addr string) (*stream, error) {
	nc, err := (&net.Dialer{KeepAliveConfig: keepAlive, Control: limitSynRetries}).DialContext(ep.ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if !ep.hold(nc) {
		return nil, context.Cause(ep.ctx)
	}
	if err := nc.SetDeadline(time.Now().Add(ep.cfg.handshake)); err != nil {
		_ = nc.Close()
		ep.release(nc)
		return nil, err
	}
	return newStream(nc, ep.cfg.stall), nil
}

// negotiate does the dialling side's part of the handshake.
func (ep *Endpoint) negotiate(addr string, s *stream, offer offerer, more func(string, uint64) (*stream, error)) (*Session, bool, error) {
	packet, brochure := offer.Hello()
	if err := s.writeFrames(packet, brochure); err != nil {
		return nil, false, err
	}
	frame, err := s.readFrame(maxHandshake, "an answer")
	if err != nil {
		return nil, false, err
	}
	plan, err := offer.Answered(frame)
	if err != nil {
		return nil, false, err
	}
	switch {
	case plan.Defer:
		return nil, true, nil
	case plan.Cohort:
		link, linkErr := ep.startLink(s, true)
		if linkErr != nil {
			return nil, false, linkErr
		}
		return &Session{Peer: link.Peer().Name, Dialled: true, Link: link}, false, nil
	}
	session, err := ep.establish(addr, s, plan, more)
	return session, false, err
}

// establish opens the other connections of a pipe.
func (ep *Endpoint) establish(addr string, s *stream, plan sessionPlan, more func(string, uint64) (*stream, error)) (*Session, error) {
	var err error
	var reply *stream
	opened := []*stream{s}
	if plan.HasReply {
		if reply, err = more(plan.Address, plan.Reply); err != nil {
			return nil, err
		}
		opened = append(opened, reply)
	}
	control, err := more(plan.Address, plan.ChannelID)
	if err != nil {
		return nil, err
	}
	ch := channel{control: control, lanes: []*stream{control}}
	if plan.Channel == ChannelMPT {
		lanes, err := readLanes(control, opened...)
		if err != nil {
			return nil, err
		}
		ch.lanes = nil
		for _, l := range lanes {
			lane, err := more(l.Address, l.ID)
			if err != nil {
				return nil, err
			}
			ch.lanes = append(ch.lanes, lane)
		}
	}
	return &Session{Peer: addr, Dialled: true, Pipe: newPipe(ep, addr, true, s, reply, ch)}, nil
}

// readLanes reads where the lanes of an mpt channel are. The other side does not send it while it waits for a connection that
// was cut.
func readLanes(control *stream, others ...*stream) ([]laneAddress, error) {
	var ended atomic.Bool
	stop := whenEnded(func() {
		ended.Store(true)
		_ = control.nc.SetReadDeadline(time.Unix(1, 0))
	}, others...)
	frame, err := control.readFrame(maxHandshake, "the hello of an mpt channel")
	stop()
	if ended.Load() {
		return nil, errCut
	}
	if err != nil {
		return nil, err
	}
	lanes, err := parseLanes(frame)
	if err == nil && len(lanes) != mptLanes {
		err = cohort.Newf("tensorpipe: handshake", cohort.Protocol, "an mpt channel of %d lanes, %d are agreed", len(lanes), mptLanes)
	}
	return lanes, err
}
