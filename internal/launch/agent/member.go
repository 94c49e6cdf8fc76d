// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// member is this node's part of a job on several nodes.
type member struct {
	job      *Job
	host     string // its address
	wire     *nodecoord.Wire
	incoming chan nodecoord.Message // closed when the connection has ended
	lost     error                  // why, and left what the host said before; valid after that
	left     string
	welcomed bool // the host has taken this node; valid after that
	stopped  sync.WaitGroup
	quit     chan struct{}
	sending  sync.Mutex
	// questions are those of "cohort why" on this node.
	questions nodecoord.Questions
	// answering is held while a question of another node is answered.
	answering chan struct{}
	// replaceable says that another launcher takes the place of a lost host.
	replaceable bool
	// hosts says that this launcher is the host.
	hosts bool
	// reason is why the last attempt was stopped or has failed, "" if it is not known; reasonLogged that it was printed.
	reason       string
	reasonLogged bool
	// watched says that the job is watched on some node, hostDied that the host was lost during an attempt.
	watched, hostDied bool
	// dismissed is the last word of the host, or nil.
	dismissed *nodecoord.Dismiss
}

// newMember makes this node a member of the job whose host is at the other end.
func newMember(j *Job, c net.Conn, addr string) *member {
	m := &member{
		job: j, host: addr, wire: nodecoord.NewWire(c, j.cfg.Silence), incoming: make(chan nodecoord.Message, 16),
		quit: make(chan struct{}), answering: make(chan struct{}, maxAnswering),
	}
	m.stopped.Go(m.read)
	m.stopped.Go(m.heartbeat)
	return m
}

func (m *member) read() {
	defer close(m.incoming)
	left, welcomed := "", false
	for {
		msg, err := m.wire.Receive()
		if err != nil {
			m.lost, m.left, m.welcomed = err, left, welcomed
			return
		}
		switch {
		case msg.Welcome:
			welcomed = true
			if m.job.creds == nil {
				continue
			}
			if err = m.job.creds.Admitted(msg.Leaf); err != nil {
				m.lost, m.welcomed = err, true
				return
			}
			continue
		case msg.Examine != nil:
			m.answer(*msg.Examine)
			continue
		case msg.Seen != nil:
			m.questions.Answered(msg.Seen)
			continue
		case msg.View != nil:
			m.job.board.others(msg.View, time.Now())
			continue
		case msg.Leave != nil:
			left = msg.Leave.Reason
			continue
		}
		failpoint.At("agent.member.incoming")
		select {
		case m.incoming <- msg:
		case <-m.quit:
			return
		}
	}
}

// heartbeat tells the host again and again that this node is alive.
func (m *member) heartbeat() {
	tick := time.NewTicker(m.wire.AliveEvery())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.send(nodecoord.Message{Alive: true})
		case <-m.quit:
			return
		}
	}
}

// send sends a message to the host. A lost host is noticed by read.
func (m *member) send(msg nodecoord.Message) {
	m.sending.Lock()
	defer m.sending.Unlock()
	_ = m.wire.Send(msg)
}

func (m *member) close() {
	close(m.quit)
	_ = m.wire.Close()
	m.stopped.Wait()
}

// dropped reports whether the connection was ended before the host has answered the request to join.
func (m *member) dropped() bool {
	return !m.welcomed && (errors.Is(m.lost, net.ErrClosed) || ctxdial.Reset(m.lost))
}

// run takes part in attempts until the host dismisses this node.
func (m *member) run() error {
	j := m.job
	request := nodecoord.Message{Join: &nodecoord.Join{
		RunID: j.cfg.RunID, Host: j.host, PID: os.Getpid(), Roles: j.cfg.sizes(),
		Wish: j.cfg.NodeRank, Attempt: j.seen.attempt, Restarts: j.seen.restarts, Watches: j.screen.Show != nil,
	}}
	if err := j.prove(request.Join, m.wire.Conn); err != nil {
		return cohort.Newf(op, cohort.Internal, "the proof for the rendezvous at %s: %w", m.host, err)
	}
	if b, err := json.Marshal(request); err != nil || len(b) >= nodecoord.MaxJoin {
		return refuse("the names of the %d roles and the job's id take %d bytes together: %d is the most on several nodes",
			len(j.cfg.Roles), len(b), nodecoord.MaxJoin)
	}
	m.send(request)
	for m.dismissed == nil {
		select {
		case msg, open := <-m.incoming:
			switch {
			case !open && m.dropped():
				return errDropped
			case !open:
				return m.hostLost()
			case msg.Dismiss != nil:
				m.dismissed = msg.Dismiss
			case msg.Waiting != nil && msg.Waiting.Here < msg.Waiting.Max:
				m.publishGathering(*msg.Waiting)
				if m.reason != "" && !m.reasonLogged {
					m.reasonLogged = true
					j.screen.logf("%s; the job waits for nodes", m.reason)
				}
				j.screen.logf("%d of %s nodes are present", msg.Waiting.Here, nodeRange(msg.Waiting.Min, msg.Waiting.Max))
			case msg.Begin != nil:
				if ended, err := m.attempt(*msg.Begin); err != nil || ended {
					return err
				}
			}
		case s := <-j.signals:
			if n, ending := j.setSignal(s); ending {
				m.leave(n)
				return nil
			}
		case <-j.asked.Done():
			return cohort.Ended(j.asked, op)
		}
	}
	d := m.dismissed
	if d.OtherJob && m.replaceable { // the host died without a word, and its port has another owner
		return errHostLost
	}
	if d.OtherJob {
		d.Sentence = fmt.Sprintf(
			"the rendezvous at %s is that of a job with another id than %q: give all nodes of a job the same --rdzv-id, and each job "+
				"an endpoint of its own", m.host, j.cfg.RunID)
	}
	j.setEnd(launchcore.End{OK: d.OK, Code: cohort.Code(d.Code), Sentence: d.Sentence, Rank: d.Rank})
	return nil
}

// leave notifies the host that a signal has ended this node. A host leaves by itself, and begins nothing before that.
func (m *member) leave(signal int) {
	if !m.hosts {
		m.send(nodecoord.Message{Leave: &nodecoord.Leave{Reason: "was ended by " + postmortem.Code(-signal)}})
	}
}

// publishGathering shows on the board that the job waits for nodes.
func (m *member) publishGathering(w nodecoord.Waiting) {
	g := &Gathering{Here: w.Here, Min: w.Min, Max: w.Max, Since: time.Now()}
	if len(w.Numbers) == w.Here {
		for n := range min(w.Max, nodecoord.MaxRoster) {
			if !slices.Contains(w.Numbers, n) {
				g.Missing = append(g.Missing, n)
			}
		}
	}
	m.job.board.change(func(s *Status) {
		if s.Gathering != nil {
			g.Since = s.Gathering.Since
		}
		s.Gathering, s.World, s.Ranks, s.Waits, s.Others, s.OtherWaits = g, 0, nil, nil, nil, nil
	})
}

func nodeRange(low, high int) string {
	if low == high {
		return strconv.Itoa(low)
	}
	return fmt.Sprintf("%d to %d", low, high)
}

func (m *member) hostLost() error {
	if m.replaceable {
		if m.job.seen.attempt > 0 {
			m.job.seen.restarts++ // the loss of a node of an attempt counts
		}
		return errHostLost
	}
	if m.wire.Identified() {
		m.job.setEnd(launchcore.End{
			Code: cohort.PeerLost,
			Sentence: fmt.Sprintf("the launcher that hosts the rendezvous at %s is lost: %s", m.host,
				nodecoord.NodeLostText(m.lost, m.job.cfg.Silence)),
		})
	} else {
		m.unidentifiedHost()
	}
	return nil
}

// unidentifiedHost reports who is at the rendezvous and has not sent anything that a launcher sends: another program,
// or a launcher that ended too soon.
func (m *member) unidentifiedHost() {
	_, text, _ := net.SplitHostPort(m.host)
	who, found := "what listens at the rendezvous "+m.host, false
	if port, err := strconv.Atoi(text); err == nil && m.job.cfg.hosts(m.job.asked) { // the address is one of this machine
		var owner portowner.Owner
		if owner, found = portowner.Find(port); found {
			who = owner.String() + ", which listens at the rendezvous " + m.host + ","
		}
	}
	if !found && (errors.Is(m.lost, net.ErrClosed) || ctxdial.Reset(m.lost)) {
		m.job.setEnd(launchcore.End{
			Code: cohort.PeerLost,
			Sentence: fmt.Sprintf(
				"the rendezvous at %s has ended the connection before it identified itself: a launcher that ended there at this "+
					"moment, or another program", m.host),
		})
		return
	}
	m.job.setEnd(launchcore.End{
		Code: cohort.Protocol,
		Sentence: fmt.Sprintf("%s does not answer as a launcher of the job does: %s", who,
			nodecoord.NodeLostText(m.lost, m.job.cfg.Silence)),
	})
}

// attempt runs the workers of this node. ended says that this node leaves the job.
func (m *member) attempt(b nodecoord.Begin) (ended bool, err error) {
	j := m.job
	m.adopt(b.Rules)
	if err = m.checkStore(b.StoreTLS); err != nil {
		return false, err
	}
	m.logRestart(b)
	a, err := j.newAttempt(b.Attempt, func(p *place) {
		*p = place{
			attempt: b.Attempt, node: b.Node, nodes: b.Nodes, base: b.Base, world: b.World, roles: b.Roles,
			host: m.host, addr: b.Addr, port: b.Port, ours: true, roster: b.Roster,
		}
	})
	if err != nil {
		return false, err
	}
	a.member, m.watched = m, b.Watched
	j.seen.attempt, j.seen.restarts = b.Attempt+1, b.Restarts
	outcome, err := a.run()
	j.attemptEnded(a.result(outcome))
	if err != nil {
		return false, err
	}
	if outcome.Signal != 0 {
		m.leave(int(outcome.Signal))
		return true, nil
	}
	if m.hostDied && m.dismissed == nil {
		return true, m.hostLost()
	}
	failure := a.blame(outcome)
	m.reason = cmp.Or(m.reason, failure.Sentence)
	m.send(nodecoord.Message{Ended: &nodecoord.Ended{
		Failed: nodecoord.Failed{Attempt: b.Attempt, Failure: failure},
		OK:     outcome.Succeeded(),
	}})
	return false, nil
}

// adopt takes the rules of the host, and prints where they are not those of this node.
func (m *member) adopt(r nodecoord.Rules) {
	c := &m.job.cfg
	if r.MaxNodes < 1 { // a launcher of an older version does not send them
		return
	}
	if own := c.rules(); r != own {
		m.job.screen.logf(
			"this node has --nnodes %s --max-restarts %d, but the launcher that hosts the rendezvous has --nnodes %s --max-restarts "+
				"%d, which counts",
			nodeRange(own.MinNodes, own.MaxNodes), own.MaxRestarts, nodeRange(r.MinNodes, r.MaxNodes), r.MaxRestarts)
	}
	c.MinNodes, c.MaxNodes, c.MaxRestarts = r.MinNodes, r.MaxNodes, r.MaxRestarts
	m.job.board.change(func(s *Status) { s.MaxRestarts = r.MaxRestarts })
}

// logRestart prints why the job starts again.
func (m *member) logRestart(b nodecoord.Begin) {
	switch {
	case m.reason == "":
	case b.Restarts > m.job.seen.restarts:
		m.job.screen.logf("%s; restart %d of %d", m.reason, b.Restarts, m.job.cfg.MaxRestarts)
	default:
		m.job.screen.logf("%s; the job starts again with %d nodes", m.reason, b.Nodes)
	}
	m.reason, m.reasonLogged = "", false
}

// hostMessage takes a message of the host during an attempt.
func (a *attempt) hostMessage(msg nodecoord.Message, open bool) {
	switch {
	case !open:
		a.member.hostDied = true
		a.step(launchcore.Stop{})
	case msg.Stop != nil:
		a.member.reason = msg.Stop.Reason
		a.step(launchcore.Stop{Linger: msg.Stop.Linger})
	case msg.Dismiss != nil:
		a.member.dismissed = msg.Dismiss
		a.step(launchcore.Stop{})
	}
}

// reportFailure notifies the host that a worker has failed, or that all of them hang.
func (a *attempt) reportFailure(hung bool) {
	if a.member == nil {
		return
	}
	exits := launchcore.Outcome{Hung: hung}
	for _, w := range a.workers {
		if w.exit != nil && w.exit.Code != 0 || w.refused != "" {
			exits.Exits = append(exits.Exits, launchcore.Exit{Worker: launchcore.Worker(w.local), Code: 1})
		}
	}
	a.member.send(nodecoord.Message{Failed: &nodecoord.Failed{Attempt: a.place.attempt, Failure: a.blame(exits)}})
}

// blame returns the failure on this node that explains the others best. Without one the sentence is empty.
func (a *attempt) blame(o launchcore.Outcome) launchcore.Failure {
	if o.Hung {
		return launchcore.Failure{Sentence: HungSentence(a.hang.verdict), Code: cohort.DeadlineExceeded}
	}
	var failures []postmortem.Failure
	for _, e := range o.Exits {
		if e.Failed() {
			failures = append(failures, postmortem.Failure{Rank: int(a.workers[e.Worker].rank), Cause: a.workers[e.Worker].cause})
		}
	}
	i := postmortem.First(failures)
	if i < 0 {
		return launchcore.Failure{Blame: 9}
	}
	f := failures[i]
	rank := cohort.Rank(f.Rank)
	return launchcore.Failure{
		Sentence: fmt.Sprintf("rank %d on %s %s", f.Rank, a.job.host, f.Cause.Words), Blame: postmortem.Blame(f.Cause.Kind), Rank: &rank,
	}
}
