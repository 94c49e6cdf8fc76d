// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/security/joblisten"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// Config is what a host needs to know of the job. The fields are those of launch.Config.
type Config struct {
	RunID string
	Rules
	StoreAddr                      string // of this node, where the store listens; "": that of the endpoint
	StorePort                      int
	JoinTimeout, LastCall, Silence time.Duration
	// ListenStore opens the store of an attempt. Nil: for everyone who reaches it.
	ListenStore func(addr string) (*tcpstore.Server, error)
	// Users says which users of this host may connect; nil: the default.
	Users *peeruid.Policy
	// Credentials are those of the job; nil: the launchers meet in plain text, and the id is all that they have to know. With them,
	// ListenStore opens a store for connections over TLS.
	Credentials *jobtls.Credentials
	// OnRefused, if set, is called once for each reason with the address of a client that was refused. It may be called for two at the
	// same time.
	OnRefused func(why Refusal, addr string)
}

// Host is the rendezvous of a job on several nodes. It runs in one of the launchers.
type Host struct {
	cfg      Config
	name     string // this node as the others know it
	listener net.Listener
	events   chan event
	quit     chan struct{}
	done     chan struct{}
	conns    sync.WaitGroup
	once     sync.Once
	// strangers are the connections that have not joined; what is said of them is said once.
	strangers *joblisten.Strangers
	refused   [refusals]sync.Once

	// Owned by the goroutine of run.
	job      *launchcore.Job
	nodes    map[launchcore.Node]*conn
	attempt  int
	store    *tcpstore.Server
	timer    *time.Timer
	timerID  int
	holds    atomic.Pointer[func() error] // reports whether this is still the host; nil: no other launcher can be
	waiting  int                          // what was sent to the nodes, -1: the job does not wait
	replaced bool                         // Leave has notified some other node
	// shownNew says that nodes have sent something that was not passed on to the viewers.
	shownNew bool
}

// conn is the host's end of a node's connection.
type conn struct {
	id   launchcore.Node
	wire *Wire
	out  *outbox
	name string
	join *Join
	// place is its number in the attempt begun, the last one in which it takes part, and base its first rank there.
	place, begun int
	base         cohort.Rank
	// leaf is the certificate of the node, if the host has issued one.
	leaf []byte
	// shown is the state of the node's ranks, nil if it has sent none.
	shown *Shown
}

// event is something that happened to the host. Exactly one of its fields beside conn is set.
type event struct {
	conn    *conn
	fresh   bool // the connection is new, and message its request to join
	message Message
	gone    error // the connection has ended
	end     error // the host itself is ended, and why
	leave   *leave
}

// leave is the wish of the host to be replaced.
type leave struct{ reason, own string }

// MaxNodes bounds the connections of a host.
const MaxNodes = 16384

// Listen starts a host on an address.
func Listen(cfg Config, addr string) (*Host, error) {
	l, err := net.Listen("tcp", addr) //nolint:noctx // it lives as long as the host
	if err != nil {
		return nil, err
	}
	name, _, _ := net.SplitHostPort(addr)
	if cfg.OnRefused == nil {
		cfg.OnRefused = func(Refusal, string) {}
	}
	if cfg.ListenStore == nil {
		cfg.ListenStore = func(addr string) (*tcpstore.Server, error) { return tcpstore.Listen(addr) }
	}
	if cfg.Users == nil {
		cfg.Users = peeruid.Default(nil, nil)
	}
	h := &Host{
		strangers: joblisten.NewStrangers(),
		cfg:       cfg, name: name, listener: cfg.Users.Listener(l),
		events: make(chan event), quit: make(chan struct{}), done: make(chan struct{}),
		nodes: map[launchcore.Node]*conn{}, attempt: -1, waiting: -1, timer: time.NewTimer(time.Hour),
		job: launchcore.NewJob(launchcore.JobLimits{
			Min: cfg.MinNodes, Max: cfg.MaxNodes, MaxRestarts: cfg.MaxRestarts, LastCall: cfg.LastCall, Join: cfg.JoinTimeout, Strikes: 3,
		}),
	}
	go h.run()
	h.conns.Go(h.accept)
	return h, nil
}

// Addr is where the host listens.
func (h *Host) Addr() string { return h.listener.Addr().String() }

// read passes on what a node says until its connection ends. The connection is write's to close, which may have
// something left to say.
func (h *Host) read(c *conn) {
	for {
		m, err := c.wire.Receive()
		failpoint.At("nodecoord.host.event")
		select {
		case h.events <- event{conn: c, message: m, gone: err}:
		case <-h.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// write sends what the host has to say, and a heartbeat when that is nothing, until out is closed. What cannot be sent
// is dropped: read notices.
func (h *Host) write(c *conn) {
	defer func() { _ = c.wire.Close() }()
	tick := time.NewTicker(c.wire.AliveEvery())
	defer tick.Stop()
	var broken error
	for {
		m, ok, closed := c.out.next()
		if closed {
			return
		}
		if !ok {
			select {
			case <-c.out.ready:
				continue
			case <-tick.C:
				m.Alive = true
			}
		}
		if broken == nil {
			if broken = c.wire.Send(m); broken != nil {
				_ = c.wire.Close()
			}
		}
	}
}

// run owns the machine.
func (h *Host) run() {
	defer close(h.done)
	defer h.timer.Stop()
	view := time.NewTicker(ViewEvery)
	defer view.Stop()
	all := map[*conn]bool{} // connections whose end has not been seen
	h.perform(h.job.Start())
	for !h.job.Done() {
		select {
		case e := <-h.events:
			if e.leave != nil {
				h.tellLeave(e.leave)
				h.job.End(launchcore.End{Code: cohort.Aborted, Sentence: e.leave.reason}) // without its effects
				continue
			}
			switch {
			case e.end != nil:
				h.end(e.end)
			case e.fresh:
				all[e.conn] = true
				h.joined(e.conn, e.message.Join)
			default:
				h.take(e)
			}
			if e.gone != nil {
				e.conn.out.close()
				delete(all, e.conn)
			}
		case <-h.timer.C:
			h.perform(h.job.Step(launchcore.TimerFired{ID: h.timerID}))
		case <-view.C:
			h.sendView()
		}
	}
	if h.store != nil {
		_ = h.store.Close()
	}
	for c := range all {
		c.out.close()
	}
	_ = h.listener.Close()
	close(h.quit)
	h.strangers.End()
}

// say queues a message. A node that does not read is not waited for: its silence ends it.
func (c *conn) say(m Message) {
	if !c.out.put(m) {
		_ = c.wire.Close()
	}
}

func (h *Host) take(e event) {
	c := e.conn
	switch m := e.message; {
	case c.join == nil: // it was refused
	case e.gone != nil:
		if silent(e.gone) { // it may only have been stopped for a while, and must know then that it has no part any more
			c.say(Message{Dismiss: &Dismiss{
				Code: uint8(cohort.PeerLost),
				Sentence: "this node was declared dead: the launcher that hosts the rendezvous has received nothing from it for " +
					h.cfg.Silence.String(),
			}})
		}
		h.left(c, fmt.Sprintf("node %s is lost: %s", c.name, NodeLostText(e.gone, h.cfg.Silence)))
	case m.Examine != nil && m.Examine.What == Presence:
		c.out.answer(h.presence(*m.Examine))
	case m.Examine != nil:
		for _, to := range h.nodes {
			to.say(Message{Examine: &Question{ID: m.Examine.ID, What: m.Examine.What, Asker: c.id}})
		}
	case m.Seen != nil:
		h.passOn(c, *m.Seen)
	case m.Shown != nil:
		h.keepShown(c, m.Shown)
	case m.Leave != nil:
		h.left(c, fmt.Sprintf("node %s %s", c.name, m.Leave.Reason))
	case m.Failed != nil && m.Failed.Attempt == h.attempt:
		h.perform(h.job.Step(launchcore.Failed{Node: c.id, Failure: h.ownFailure(c, m.Failed.Failure)}))
	case m.Ended != nil && m.Ended.Attempt == h.attempt:
		h.perform(h.job.Step(launchcore.NodeEnded{Node: c.id, OK: m.Ended.OK, Failure: h.ownFailure(c, m.Ended.Failure)}))
	}
}

// silent reports whether the peer was declared dead because it sent nothing.
func silent(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// NodeLostText says how a connection ended.
func NodeLostText(err error, silence time.Duration) string {
	if silent(err) {
		return "it has not responded for " + silence.String()
	}
	if errors.As(err, new(*json.SyntaxError)) {
		return "it sent something else"
	}
	return "its connection has ended"
}

// sendWaiting sends the nodes how many are present when the job waits for more.
func (h *Host) sendWaiting() {
	n := h.job.Waiting()
	if n == h.waiting {
		return
	}
	h.waiting = n
	if n >= 0 {
		waiting := Waiting{Here: n, Min: h.cfg.MinNodes, Max: h.cfg.MaxNodes}
		for _, c := range h.nodes {
			if c.join.Wish >= 0 && len(waiting.Numbers) < MaxRoster {
				waiting.Numbers = append(waiting.Numbers, c.join.Wish)
			}
		}
		for _, c := range h.nodes {
			c.say(Message{Waiting: &waiting})
		}
	}
}

func (h *Host) left(c *conn, reason string) {
	if _, known := h.nodes[c.id]; known {
		delete(h.nodes, c.id)
		h.perform(h.job.Step(launchcore.Left{Node: c.id, Reason: reason}))
	}
}

// MaxRoster bounds the nodes that others are sent, for people.
const MaxRoster = 64

// roster lists the nodes that begin, in order.
func (h *Host) roster(effects []launchcore.JobEffect) []Node {
	var all []Node
	for _, e := range effects {
		b, begins := e.(launchcore.BeginNode)
		if c := h.nodes[b.Node]; begins && c != nil && len(all) < MaxRoster {
			all = append(all, Node{Host: c.join.Host, Base: cohort.Rank(b.Base), Workers: c.join.workers()})
		}
	}
	return all
}

func (h *Host) perform(effects []launchcore.JobEffect) {
	roster, watched := h.roster(effects), h.watched()
	for _, e := range effects {
		switch e := e.(type) {
		case launchcore.OpenStore:
			h.openStore(e.Attempt)
		case launchcore.BeginNode:
			if c := h.nodes[e.Node]; c != nil && h.store != nil {
				c.place, c.begun, c.base = e.Assignment.Node, h.attempt, cohort.Rank(e.Base)
				c.say(Message{Begin: &Begin{
					Assignment: e.Assignment, Addr: h.storeHost(), Port: h.store.Port(), StoreTLS: h.cfg.Credentials != nil, Roster: roster,
					Rules: h.cfg.Rules, Watched: watched && e.Assignment.Node < MaxRoster,
				}})
			}
		case launchcore.StopNode:
			if c := h.nodes[e.Node]; c != nil {
				c.say(Message{Stop: &stop{Reason: e.Reason, Linger: e.Linger}})
			}
		case launchcore.Dismiss:
			if c := h.nodes[e.Node]; c != nil {
				c.say(Message{Dismiss: &Dismiss{OK: e.OK, Code: uint8(e.Code), Sentence: e.Sentence, Rank: e.Rank}})
			}
		case launchcore.SetTimer:
			h.timerID = e.ID
			h.timer.Reset(e.After)
		case launchcore.Finished:
		}
	}
	h.sendWaiting()
}

// storeHost is the address of the store as all nodes know it.
func (h *Host) storeHost() string { return cmp.Or(h.cfg.StoreAddr, h.name) }

// openStore starts a fresh store. Its port is free or that of the configuration, and connections to the one before are
// cut, so that nothing of an earlier attempt reaches this one.
func (h *Host) openStore(attempt int) {
	h.attempt = attempt
	if h.store != nil {
		_ = h.store.Close()
		h.store = nil
	}
	if holds := h.holds.Load(); holds != nil {
		if err := (*holds)(); err != nil {
			h.end(err)
			return
		}
	}
	address := net.JoinHostPort(h.storeHost(), strconv.Itoa(h.cfg.StorePort))
	server, err := h.cfg.ListenStore(address)
	if err != nil {
		err = portowner.Named(address, err)
		h.perform(h.job.End(launchcore.End{Code: cohort.CodeOf(err), Sentence: fmt.Sprintf("no store for the job: %v", err)}))
		return
	}
	h.store = server
}

// Confirm has the host ask before each attempt whether another launcher has taken its place.
func (h *Host) Confirm(holds func() error) { h.holds.Store(&holds) }

// end ends the job.
func (h *Host) end(reason error) {
	sentence := reason.Error()
	if e, ok := errors.AsType[*cohort.Error](reason); ok && e.Detail != "" {
		sentence = e.Detail
	}
	h.perform(h.job.End(launchcore.End{Code: cohort.CodeOf(reason), Sentence: sentence}))
}

// End ends the job on all nodes, for a reason of the host's own, if it has not ended.
func (h *Host) End(reason error) {
	select {
	case h.events <- event{end: reason}:
	case <-h.done:
	}
}

// Leave ends the rendezvous and not the job: the other nodes are sent why this one leaves, and choose another host. own is the address
// from which this node itself has connected, which may have ended already. It reports false if there are no others, or the job has ended.
// Who calls it again gets the same answer.
func (h *Host) Leave(reason, own string) bool {
	select {
	case h.events <- event{leave: &leave{reason, own}}:
	case <-h.done:
	}
	<-h.done
	return h.replaced
}

func (h *Host) tellLeave(l *leave) {
	for _, c := range h.nodes {
		c.say(Message{Leave: &Leave{Reason: l.reason}})
		h.replaced = h.replaced || c.wire.RemoteAddr().String() != l.own
	}
}

// Close ends the rendezvous and waits until the nodes have been notified.
func (h *Host) Close() {
	h.once.Do(func() {
		h.End(cohort.New("launch", cohort.Aborted, "the launcher that hosts the rendezvous has ended"))
		<-h.done
		h.conns.Wait()
	})
}
