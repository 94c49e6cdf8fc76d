// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// opening is a pipe that a peer opens, until its connections have arrived.
type pipeSetup struct {
	ep       *Endpoint
	peer     string
	host     string                  // of the first connection
	address  string                  // where the peer is asked to dial
	expected map[uint64]chan *stream // connections that have not arrived
	got      []*stream               // those that have arrived

	timer    *time.Timer
	deadline time.Time     // when timer ends the wait
	left     chan struct{} // closed when the first connection has ended
	gone     bool          // the first connection has ended
	began    time.Time
	unread   int           // later connections of the host that ended before their hello; guarded by the lock
	changed  chan struct{} // has room for one: a connection of the host has arrived, or ended before its hello
}

// lostGrace is how long the connections of a pipe may take to arrive after as many as are missing, from the same host, have ended before
// their hello. PyTorch opens them at once, so the missing ones were those. But it may also have been a port scan or health check of this
// port, while packets of the worker are lost: this is time for four retransmissions.
const lostGrace = 10 * time.Second

// beginSetup begins to wait for the connections of a pipe. It is called before the peer is asked for them.
func (ep *Endpoint) beginSetup(peer string, s *stream) *pipeSetup {
	o := &pipeSetup{
		ep: ep, peer: peer, host: hostOf(s.nc), address: ep.cfg.address, expected: map[uint64]chan *stream{},
		began: time.Now(), changed: make(chan struct{}, 1),
	}
	if o.address == "" {
		o.address = s.nc.LocalAddr().String()
	}
	failpoint.At("tensorpipe.endpoint.opens")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.mu.setups[o] = struct{}{}
	return o
}

// unread notes a connection that has ended before it announced its pipe. A PyTorch worker does not notice that,
// and waits for answers on a pipe that will never be complete.
func (ep *Endpoint) unread(x *unidentifiedConn) {
	failpoint.At("tensorpipe.endpoint.unread")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for o := range ep.mu.setups {
		if o.host == x.host && !x.came.Before(o.began) {
			o.unread++
		}
	}
	ep.notifySetupsLocked(x.host)
}

// notifySetupsLocked wakes the pipes that a host opens, for one of its connections.
func (ep *Endpoint) notifySetupsLocked(host string) {
	for o := range ep.mu.setups {
		if o.host == host {
			select {
			case o.changed <- struct{}{}:
			default:
			}
		}
	}
}

// missingMayBeLost reports whether all connections that are missing may be ones that have ended before their hello. If
// fewer have, others are on their way, and the worker is slow.
func (o *pipeSetup) missingMayBeLost() bool {
	o.ep.mu.Lock()
	defer o.ep.mu.Unlock()
	missing := 0
	for id := range o.expected {
		if _, waits := o.ep.mu.expected[id]; waits {
			missing++
		}
	}
	return o.unread > 0 && o.unread >= missing
}

// register makes the number of a connection that the peer is asked for.
func (o *pipeSetup) register() uint64 {
	id, ch := o.ep.expect()
	o.expected[id] = ch
	return id
}

// forget gives up what has not arrived.
func (o *pipeSetup) forget() {
	for id, ch := range o.expected {
		o.ep.forget(id, ch)
	}
	failpoint.At("tensorpipe.endpoint.opened")
	o.ep.mu.Lock()
	defer o.ep.mu.Unlock()
	delete(o.ep.mu.setups, o)
}

// within makes the wait end in d, if not before.
func (o *pipeSetup) within(d time.Duration) {
	if end := time.Now().Add(d); end.Before(o.deadline) {
		o.deadline = end
		o.timer.Reset(d)
	}
}

var errNotOpened = cohort.New("tensorpipe: handshake", cohort.DeadlineExceeded,
	"the peer did not open the connections of its pipe in time, or left")

// await waits for a connection.
func (o *pipeSetup) await(id uint64) (*stream, error) {
	ch := o.expected[id]
	for {
		failpoint.At("tensorpipe.endpoint.await")
		select {
		case s := <-ch:
			delete(o.expected, id)
			o.got = append(o.got, s)
			return s, nil
		case <-o.left: // a whole pipe that is closed already, or one that will never be whole
			o.left, o.gone = nil, true
			o.within(endGrace)
		case <-o.changed:
			if o.missingMayBeLost() {
				o.within(o.ep.cfg.unread)
			}
		case <-o.timer.C:
			return nil, errNotOpened
		case <-o.ep.ctx.Done():
			return nil, context.Cause(o.ep.ctx)
		}
	}
}

// pipe waits for the connections of a pipe that begins on s, and hands it over. If it fails, those that have arrived
// are the caller's to close.
func (o *pipeSetup) pipe(s *stream, plan sessionPlan) error {
	o.timer, o.deadline = time.NewTimer(o.ep.cfg.handshake), time.Now().Add(o.ep.cfg.handshake)
	defer o.timer.Stop()
	left := make(chan struct{})
	defer whenEnded(func() { close(left) }, s)()
	o.left = left
	ch, err := o.channel(plan)
	if err != nil {
		return err
	}
	reply, err := o.await(plan.Reply)
	if err != nil && (o.gone || !errors.Is(err, errNotOpened)) {
		return err // else the pipe goes on without it, since PyTorch never uses it
	}
	for _, x := range append(o.got, s) {
		if err := x.nc.SetDeadline(time.Time{}); err != nil {
			return err
		}
	}
	session := &Session{Peer: o.peer, Pipe: newPipe(o.ep, o.peer, false, s, reply, ch)}
	failpoint.At("tensorpipe.opening.arrive")
	select {
	case o.ep.sessions <- session:
		return nil
	default:
		_ = session.Close()
		return cohort.Newf("tensorpipe: handshake", cohort.Exhausted, "more than %d sessions wait to be accepted", cap(o.ep.sessions))
	}
}

// channel waits for the connections of the channel that carries tensors.
func (o *pipeSetup) channel(plan sessionPlan) (channel, error) {
	control, err := o.await(plan.ChannelID)
	if err != nil {
		return channel{}, err
	}
	if plan.Channel != ChannelMPT {
		return channel{control: control, lanes: []*stream{control}}, nil
	}
	lanes := make([]laneAddress, mptLanes)
	for i := range lanes {
		lanes[i] = laneAddress{o.address, o.register()}
	}
	if err := control.writeFrames(appendLanes(nil, lanes)); err != nil {
		return channel{}, err
	}
	ch := channel{control: control}
	for _, l := range lanes {
		lane, err := o.await(l.ID)
		if err != nil {
			return channel{}, err
		}
		ch.lanes = append(ch.lanes, lane)
	}
	return ch, nil
}
