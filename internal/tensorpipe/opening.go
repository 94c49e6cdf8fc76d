// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
)

// opening is a pipe that a peer opens, until its connections are here.
type opening struct {
	ep       *Endpoint
	peer     string
	address  string                  // where the peer is asked to connect to
	expected map[uint64]chan *stream // what it is asked for and has not come
	got      []*stream               // what has come
	late     <-chan time.Time
	left     <-chan struct{} // closed when the first connection has ended
}

// register makes the number of a connection that the peer is asked for.
func (o *opening) register() uint64 {
	id, ch := o.ep.expect()
	o.expected[id] = ch
	return id
}

// forget gives up what has not come.
func (o *opening) forget() {
	for id, ch := range o.expected {
		o.ep.forget(id, ch)
	}
}

// await waits for a connection.
func (o *opening) await(id uint64) (*stream, error) {
	ch := o.expected[id]
	for {
		moment.At("tensorpipe.endpoint.await")
		select {
		case s := <-ch:
			delete(o.expected, id)
			o.got = append(o.got, s)
			return s, nil
		case <-o.left: // a whole pipe that is closed already, or one that will never be whole
			o.left, o.late = nil, time.After(endGrace)
		case <-o.late:
			return nil, dist.New("tensorpipe: handshake", dist.DeadlineExceeded, "the peer did not open the connections of its pipe in time, or left")
		case <-o.ep.ctx.Done():
			return nil, context.Cause(o.ep.ctx)
		}
	}
}

// pipe waits for the connections of a pipe that begins on s, and hands it over. If it fails, those that have come are the caller's to close.
func (o *opening) pipe(s *stream, plan Plan) error {
	timeout := time.NewTimer(o.ep.cfg.handshake)
	defer timeout.Stop()
	o.late = timeout.C
	left := make(chan struct{})
	defer whenEnded(func() { close(left) }, s)()
	o.left = left
	reply, err := o.await(plan.Reply)
	if err != nil {
		return err
	}
	ch, err := o.channel(plan)
	if err != nil {
		return err
	}
	for _, x := range append(o.got, s) {
		if err := x.nc.SetDeadline(time.Time{}); err != nil {
			return err
		}
	}
	session := &Session{Peer: o.peer, Pipe: newPipe(o.ep, o.peer, false, s, reply, ch)}
	moment.At("tensorpipe.opening.arrive")
	select {
	case o.ep.sessions <- session:
		return nil
	default:
		_ = session.Close()
		return dist.Newf("tensorpipe: handshake", dist.Exhausted, "more than %d sessions wait to be accepted", cap(o.ep.sessions))
	}
}

// channel waits for the connections of the channel that carries tensors.
func (o *opening) channel(plan Plan) (channel, error) {
	control, err := o.await(plan.ChannelID)
	if err != nil {
		return channel{}, err
	}
	if plan.Channel != ChannelMPT {
		return channel{control: control, lanes: []*stream{control}}, nil
	}
	lanes := make([]LaneAddress, mptLanes)
	for i := range lanes {
		lanes[i] = LaneAddress{o.address, o.register()}
	}
	if err := control.writeFrames(AppendLanes(nil, lanes)); err != nil {
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
