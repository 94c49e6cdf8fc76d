// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// point is a moment in the life of a request.
type point int

const (
	beforeSending point = iota
	whileBuilding
	onArrival      // the callee has it
	withTheAnswer  // at the same time as the answer, in another goroutine
	afterTheAnswer // the outcome is known
	points
)

var pointNames = [points]string{"before sending", "while building", "on arrival", "with the answer", "after the answer"}

// event is what happens to a request. codes are what its caller may be told; okay is an answer.
type event struct {
	name  string
	act   func(s *scene)
	codes []cohort.Code
	fatal bool // a worker is gone: nothing works afterwards
}

const okay = cohort.Code(0)

var events = []event{
	{name: "nothing", act: func(*scene) {}, codes: []cohort.Code{okay}},
	{name: "the caller gives up", act: func(s *scene) { s.cancel() }, codes: []cohort.Code{cohort.Canceled}},
	{name: "the link is cut", act: func(s *scene) { s.cut() }, codes: []cohort.Code{cohort.PeerLost, cohort.Closed, cohort.Unavailable}},
	{
		name: "the callee ends", act: func(s *scene) { s.pair.callee.begin() },
		codes: []cohort.Code{cohort.PeerLost, cohort.Closed, cohort.Unavailable}, fatal: true,
	},
	{
		name: "the caller's worker ends", act: func(s *scene) { s.pair.caller.begin() },
		codes: []cohort.Code{cohort.Closed, cohort.PeerLost}, fatal: true,
	},
	{name: "an exception", act: func(s *scene) { s.refuses.Do(func() { close(s.refuse) }) }, codes: []cohort.Code{cohort.Remote}},
}

// scene is one request with what happens to it.
type scene struct {
	pair    *pair
	cancel  context.CancelFunc
	refuse  chan struct{} // closed: the callee answers with an exception
	refuses sync.Once
}

// cut ends the link, or the pipe, and neither of the workers.
func (s *scene) cut() {
	c := s.pair.peer.Current()
	switch {
	case c == nil:
	case c.Link != nil:
		_ = c.Link.Close()
	default:
		_ = c.Pipe.Close()
	}
}

// TestEveryMoment: whatever happens to a request at whichever moment, its caller is told once, with a reason that fits, the
// extension hears once of every request that it took part in, nothing is counted as under way afterwards, and the next
// request works if both workers live.
func TestEveryMoment(t *testing.T) {
	t.Parallel()
	for _, goPeer := range []bool{true, false} {
		for _, w := range ways {
			for _, e := range events {
				for at := range points {
					name := fmt.Sprintf("cohort=%v/%s/%s/%s", goPeer, w.name, e.name, pointNames[at])
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						oneMoment(t, goPeer, w, e, at)
					})
				}
			}
		}
	}
}

func oneMoment(t *testing.T, goPeer bool, w way, e event, at point) {
	t.Helper()
	p := newPair(t, goPeer, time.Minute)
	limit, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	ctx, cancel := context.WithCancel(limit)
	defer cancel()
	s := &scene{pair: p, cancel: cancel, refuse: make(chan struct{})}
	if _, err := p.peer.Connect(limit); err != nil { // so that there is a link to cut
		t.Fatal(err)
	}
	acted := make(chan struct{})
	p.callee.answerWith(func(in rpcsession.Incoming) {
		if string(in.Payload) != "it" {
			echo(in)
			return
		}
		switch at {
		case onArrival:
			e.act(s)
		case withTheAnswer:
			go func() { defer close(acted); e.act(s) }() // it arrives once
		default:
		}
		select {
		case <-s.refuse:
			answer(in, &rpcwire.Message{Type: rpcwire.Exception, Payload: rpcwire.EncodeException(rpcwire.ErrorUnknown, "no")})
		default:
			echo(in)
		}
	})
	o := p.request("call", "it")
	plain, once := o.Build, sync.OnceFunc(func() { e.act(s) })
	o.Build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		if at == whileBuilding {
			once()
		}
		return plain(toGo)
	}
	if at == beforeSending {
		e.act(s)
	}
	type outcome struct {
		x   rpcsession.Reply
		err error
	}
	outcomes := make(chan outcome, 4)
	w.send(p, ctx, o, func(x rpcsession.Reply, err error) { outcomes <- outcome{x, err} })
	var got outcome
	select {
	case got = <-outcomes:
	case <-limit.Done():
		t.Fatal("the request has no outcome")
	}
	if at == withTheAnswer {
		<-acted
	}
	if at == afterTheAnswer {
		e.act(s)
	}
	code := okay
	if got.err != nil {
		code = cohort.CodeOf(got.err)
	}
	allowed := e.codes
	switch { // what came first may have won
	case at == afterTheAnswer:
		allowed = []cohort.Code{okay}
	case e.name != "nothing":
		allowed = append(slices.Clone(allowed), okay)
	}
	if !slices.Contains(allowed, code) {
		t.Errorf("the outcome is %v (%v), want one of %v", code, got.err, allowed)
	}
	if got.err == nil && string(got.x.Msg.Payload) != "it" {
		t.Errorf("the answer is %q", got.x.Msg.Payload)
	}
	if got.err != nil && code != cohort.Canceled && code != cohort.Closed {
		if d, ok := got.err.(*cohort.Error); !ok || d.Peer != "callee" { //nolint:errorlint // the outermost
			t.Errorf("%v does not name the worker", got.err)
		}
	}
	settled(limit, t, p.caller)
	if !e.fatal {
		x, err := p.caller.k.exchangeCounted(limit, p.request("call", "next"))
		for err != nil && e.name == "the link is cut" && limit.Err() == nil { // until it is noticed
			x, err = p.caller.k.exchangeCounted(limit, p.request("call", "next"))
		}
		if err != nil || string(x.Msg.Payload) != "next" {
			t.Errorf("the next request: %+v, %v", x.Msg, err)
		}
	}
	p.caller.close()
	p.callee.close()
	late := !goPeer && w.name == "lasting" && code == cohort.Canceled // a PyTorch worker cannot be told: its answer is wanted
	if n := len(outcomes); n > 1 || n == 1 && !late {
		t.Errorf("%d more outcomes", n)
	}
	if n := p.caller.offered.Load(); n != p.caller.answered.Load()+p.caller.lost.Load() {
		t.Errorf("the extension took part in %d requests: %d were answered, %d lost", n, p.caller.answered.Load(), p.caller.lost.Load())
	}
}

// settled waits until nothing is counted as under way.
func settled(ctx context.Context, t *testing.T, n *node) {
	t.Helper()
	if err := n.k.Active.Idle(ctx); err != nil {
		t.Errorf("%d requests are still counted as active: %v", n.k.Active.Count(), err)
	}
	if left := n.k.InFlight.Load(); left != 0 {
		t.Errorf("%d requests are still under way", left)
	}
}
