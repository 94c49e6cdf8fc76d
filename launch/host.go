// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/launchcore"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/postmortem"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// host is the rendezvous of a job on several nodes. It runs in one of the launchers.
type host struct {
	cfg      Config
	name     string // this node as the others know it
	listener net.Listener
	events   chan hostEvent
	quit     chan struct{}
	done     chan struct{}
	conns    sync.WaitGroup
	once     sync.Once

	// Owned by the goroutine of run.
	job     *launchcore.Job
	nodes   map[launchcore.Node]*hostConn
	attempt int
	store   *tcpstore.Server
	timer   *time.Timer
	timerID int
	holds   atomic.Pointer[func() error] // tells whether this is still the host; nil: nobody else can be
	waiting int                          // what the nodes were told, -1: the job does not wait
	// shownNew says that nodes have told something that those who look have not been told.
	shownNew bool
}

// hostConn is the host's end of a node's connection.
type hostConn struct {
	id   launchcore.Node
	wire *wire
	out  *outbox
	name string
	join *joinMessage
	// shown is the state of the node's ranks, nil if it has not told.
	shown *shownMessage
}

// hostEvent is something that happened to the host. Exactly one of its fields beside conn is set.
type hostEvent struct {
	conn    *hostConn
	fresh   bool // the connection is new
	message message
	gone    error  // the connection has ended
	end     string // the host itself is ended, and why
}

// maxNodes bounds the connections of a host.
const maxNodes = 16384

// newHost listens on the endpoint.
func newHost(cfg Config, addr string) (*host, error) {
	l, err := net.Listen("tcp", addr) //nolint:noctx // it lives as long as the host
	if err != nil {
		return nil, err
	}
	name, _, _ := net.SplitHostPort(addr)
	h := &host{
		cfg: cfg, name: name, listener: l, events: make(chan hostEvent), quit: make(chan struct{}), done: make(chan struct{}),
		nodes: map[launchcore.Node]*hostConn{}, attempt: -1, waiting: -1, timer: time.NewTimer(time.Hour),
		job: launchcore.NewJob(launchcore.JobLimits{
			Min: cfg.MinNodes, Max: cfg.MaxNodes, MaxRestarts: cfg.MaxRestarts, LastCall: cfg.LastCall, Join: cfg.JoinTimeout, Strikes: 3,
		}),
	}
	go h.run()
	h.conns.Go(h.accept)
	return h, nil
}

func (h *host) accept() {
	for n := launchcore.Node(0); ; n++ {
		c, err := h.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, for example
			case <-time.After(100 * time.Millisecond):
				continue
			case <-h.quit:
				return
			}
		}
		hc := &hostConn{id: n, wire: newWire(c, h.cfg.Silence), out: newOutbox()}
		select {
		case h.events <- hostEvent{conn: hc, fresh: true}:
			h.conns.Go(func() { h.read(hc) })
			h.conns.Go(func() { h.write(hc) })
		case <-h.quit:
			_ = c.Close()
			return
		}
	}
}

// read passes on what a node says until its connection ends. The connection is write's to close, which may have
// something left to say.
func (h *host) read(c *hostConn) {
	for {
		m, err := c.wire.receive()
		moment.At("launch.host.event")
		select {
		case h.events <- hostEvent{conn: c, message: m, gone: err}:
		case <-h.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// write sends what the host has to say, and a sign of life when that is nothing, until out is closed. What cannot be sent
// is dropped: read notices.
func (h *host) write(c *hostConn) {
	defer func() { _ = c.wire.Close() }()
	tick := time.NewTicker(c.wire.aliveEvery())
	defer tick.Stop()
	broken := c.wire.send(message{Alive: true}) // at once: whoever has connected knows that this is a launcher
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
			if broken = c.wire.send(m); broken != nil {
				_ = c.wire.Close()
			}
		}
	}
}

// run owns the machine.
func (h *host) run() {
	defer close(h.done)
	defer h.timer.Stop()
	view := time.NewTicker(viewEvery)
	defer view.Stop()
	all := map[*hostConn]bool{} // connections whose end has not been seen
	h.perform(h.job.Start())
	for !h.job.Done() {
		select {
		case e := <-h.events:
			switch {
			case e.end != "":
				h.perform(h.job.End(e.end))
			case e.fresh:
				all[e.conn] = true
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
			h.tellView()
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
}

// say queues a message. A node that does not read is not waited for: its silence ends it.
func (c *hostConn) say(m message) {
	if !c.out.put(m) {
		_ = c.wire.Close()
	}
}

func (h *host) take(e hostEvent) {
	c := e.conn
	switch m := e.message; {
	case e.gone != nil:
		if c.join != nil {
			h.left(c, fmt.Sprintf("node %s is gone: %s", c.name, goneWords(e.gone, h.cfg.Silence)))
		}
	case c.join == nil && m.Join != nil:
		h.joined(c, m.Join)
	case c.join == nil:
	case m.Examine != nil:
		for _, to := range h.nodes {
			to.say(message{Examine: &examineMessage{ID: m.Examine.ID, Asker: c.id}})
		}
	case m.Seen != nil:
		if to := h.nodes[m.Seen.Asker]; to != nil {
			to.out.answer(m)
		}
	case m.Shown != nil:
		h.keepShown(c, m.Shown)
	case m.Leave != nil:
		h.left(c, fmt.Sprintf("node %s %s", c.name, m.Leave.Reason))
	case m.Failed != nil && m.Failed.Attempt == h.attempt:
		h.perform(h.job.Step(launchcore.Failed{Node: c.id, Sentence: m.Failed.Sentence, Blame: m.Failed.Blame}))
	case m.Ended != nil && m.Ended.Attempt == h.attempt:
		h.perform(h.job.Step(launchcore.NodeEnded{Node: c.id, OK: m.Ended.OK, Sentence: m.Ended.Sentence, Blame: m.Ended.Blame}))
	}
}

func goneWords(err error, silence time.Duration) string {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "it has not been heard of for " + silence.String()
	}
	return "its connection has ended"
}

func (h *host) joined(c *hostConn, m *joinMessage) {
	refuse := ""
	switch {
	case m.RunID != h.cfg.RunID:
		refuse = fmt.Sprintf("another job, %q, meets at this endpoint; this one is %q", h.cfg.RunID, m.RunID)
	case m.workers() < 1 || m.workers() > 1<<16:
		refuse = fmt.Sprintf("%d workers on a node", m.workers())
	case len(h.nodes) >= maxNodes:
		refuse = "there are too many nodes"
	}
	if refuse != "" {
		c.say(message{Dismiss: &dismissMessage{Sentence: refuse}})
		return
	}
	c.join, c.name = m, m.Host+" (process "+strconv.Itoa(m.PID)+")"
	h.nodes[c.id] = c
	h.perform(h.job.Step(launchcore.Joined{Node: c.id, Roles: m.Roles, Wish: m.Wish, Attempt: m.Attempt, Restarts: m.Restarts}))
}

// tellWaiting tells the nodes how many are there when the job waits for more.
func (h *host) tellWaiting() {
	n := h.job.Waiting()
	if n == h.waiting {
		return
	}
	h.waiting = n
	if n >= 0 {
		waiting := waitingMessage{Here: n, Min: h.cfg.MinNodes, Max: h.cfg.MaxNodes}
		for _, c := range h.nodes {
			if c.join.Wish >= 0 && len(waiting.Numbers) < maxRoster {
				waiting.Numbers = append(waiting.Numbers, c.join.Wish)
			}
		}
		for _, c := range h.nodes {
			c.say(message{Waiting: &waiting})
		}
	}
}

func (h *host) left(c *hostConn, reason string) {
	if _, known := h.nodes[c.id]; known {
		delete(h.nodes, c.id)
		h.perform(h.job.Step(launchcore.Left{Node: c.id, Reason: reason}))
	}
}

// maxRoster bounds the nodes that others are told of, for people.
const maxRoster = 64

// roster lists the nodes that begin, in order.
func (h *host) roster(effects []launchcore.JobEffect) []NodeStatus {
	var all []NodeStatus
	for _, e := range effects {
		b, begins := e.(launchcore.BeginNode)
		if c := h.nodes[b.Node]; begins && c != nil && len(all) < maxRoster {
			all = append(all, NodeStatus{Host: c.join.Host, Base: b.Base, Workers: c.join.workers()})
		}
	}
	return all
}

func (h *host) perform(effects []launchcore.JobEffect) {
	roster, watched := h.roster(effects), h.watched()
	for _, e := range effects {
		switch e := e.(type) {
		case launchcore.OpenStore:
			h.openStore(e.Attempt)
		case launchcore.BeginNode:
			if c := h.nodes[e.Node]; c != nil && h.store != nil {
				c.say(message{Begin: &beginMessage{Assignment: e.Assignment, Addr: h.storeHost(), Port: h.store.Port(), Roster: roster, Watched: watched && e.Assignment.Node < maxRoster}})
			}
		case launchcore.StopNode:
			if c := h.nodes[e.Node]; c != nil {
				c.say(message{Stop: &stopMessage{Reason: e.Reason, Linger: e.Linger}})
			}
		case launchcore.Dismiss:
			if c := h.nodes[e.Node]; c != nil {
				c.say(message{Dismiss: &dismissMessage{OK: e.OK, Sentence: e.Sentence}})
			}
		case launchcore.SetTimer:
			h.timerID = e.ID
			h.timer.Reset(e.After)
		case launchcore.Finished:
		}
	}
	h.tellWaiting()
}

// storeHost is the address of the store as all nodes know it: that of the endpoint.
func (h *host) storeHost() string {
	return h.name
}

// openStore starts a fresh store. Its port is free or that of the configuration, and connections to the one before are
// cut, so that nothing of an earlier attempt reaches this one.
func (h *host) openStore(attempt int) {
	h.attempt = attempt
	if h.store != nil {
		_ = h.store.Close()
		h.store = nil
	}
	if holds := h.holds.Load(); holds != nil {
		if err := (*holds)(); err != nil {
			h.perform(h.job.End(err.Error()))
			return
		}
	}
	server, err := tcpstore.Listen(net.JoinHostPort(h.storeHost(), strconv.Itoa(h.cfg.StorePort)))
	if err != nil {
		h.perform(h.job.End(fmt.Sprintf("no store for the job: %v", err)))
		return
	}
	h.store = server
}

// confirm has the host ask before each attempt whether another launcher has taken its place.
func (h *host) confirm(holds func() error) { h.holds.Store(&holds) }

// signalled ends the job on all nodes if this launcher was ended by a signal.
func (h *host) signalled(j *job) {
	if h != nil && j.report.Signal != 0 {
		h.end("the launcher that hosts the rendezvous was ended by " + postmortem.Code(-j.report.Signal))
	}
}

// end ends the job on all nodes, for a reason of the host's own, if it has not ended.
func (h *host) end(reason string) {
	select {
	case h.events <- hostEvent{end: reason}:
	case <-h.done:
	}
}

// close ends the rendezvous and waits until the nodes have been told.
func (h *host) close() {
	h.once.Do(func() {
		h.end("the launcher that hosts the rendezvous has ended")
		<-h.done
		h.conns.Wait()
	})
}
