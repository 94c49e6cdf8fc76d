// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launchcore

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
)

// Node identifies a node's launcher. A launcher that joins again has another one.
type Node int

// JobLimits are the rules of a job on several nodes.
type JobLimits struct {
	// Min and Max are the number of nodes that take part.
	Min, Max int
	// MaxRestarts is how often the job is started again after a failure or the loss of a node.
	MaxRestarts int
	// LastCall is how long a job that has Min nodes, but not Max, waits for more.
	LastCall time.Duration
	// Join bounds the wait for Min nodes.
	Join time.Duration
	// Strikes is after how many attempts that failed on one node that node is left out, if enough others remain.
	Strikes int
}

// nodeEvent is something that happened to a job on several nodes. Its types are [Joined], [Left], [Failed], [NodeEnded]
// and [TimerFired].
type nodeEvent interface{ jobEvent() }

type (
	// Joined is a node that asks to take part.
	Joined struct {
		Node  Node
		Roles []Role
		// Wish is the number that the node would like to have, -1 for none.
		Wish int
		// Attempt and Restarts are the number of the next attempt, and of the restarts so far, of a job whose host was
		// lost: this one takes its place. 0 for a node that is new.
		Attempt, Restarts int
	}
	// Left is a lost node: its connection has ended or it has not responded for too long.
	Left struct {
		Node   Node
		Reason string
	}
	// Failed is a node on which a worker has failed. The node stops its own workers.
	Failed struct {
		Node Node
		Failure
	}
	// NodeEnded is a node whose workers have all ended. The failure is what is known of it by then.
	NodeEnded struct {
		Node Node
		OK   bool
		Failure
	}
)

// Failure describes a failure on a node. Of several the one with the smallest Blame explains the others: 0 is a cause, more is a
// consequence.
type Failure struct {
	Sentence string       `json:"sentence"`
	Blame    int          `json:"blame"`
	Rank     *cohort.Rank `json:"rank,omitempty"` // of the worker that failed, nil if it was none
	Code     cohort.Code  `json:"code,omitempty"` // of the job's end; [cohort.Remote] if it is not given
}

func (f Failure) code() cohort.Code { return cmp.Or(f.Code, cohort.Remote) }

// Role is a part of a node's workers; those of one role have consecutive ranks.
type Role struct {
	Name    string
	Workers int
}

// RolePlace is where the workers of a node stand in a role: the number of its first one, and how many there are on all
// nodes.
type RolePlace struct {
	Name        string
	Base, World int
}

func (Joined) jobEvent()     {}
func (Left) jobEvent()       {}
func (Failed) jobEvent()     {}
func (NodeEnded) jobEvent()  {}
func (TimerFired) jobEvent() {}

// Assignment is a node's place in an attempt.
type Assignment struct {
	Attempt     int
	Node, Nodes int
	Base, World int
	Roles       []RolePlace
	// Restarts counts those after a failure or the loss of a node.
	Restarts int
}

// JobEffect is something that the driver of a job has to do.
type JobEffect interface{ jobEffect() }

type (
	// OpenStore starts a fresh store for an attempt, in place of the one before.
	OpenStore struct{ Attempt int }
	// BeginNode has a node start its workers.
	BeginNode struct {
		Node Node
		Assignment
	}
	// StopNode has a node stop its workers; answered by [NodeEnded]. Linger says that the cause of the failure is not
	// known yet and may be one of its workers.
	StopNode struct {
		Node   Node
		Reason string
		Linger bool
	}
	// Dismiss is the last that a node hears.
	Dismiss struct {
		Node Node
		End
	}
	// Finished says that the job has ended. It is the last effect.
	Finished struct{ End }
)

// End says how a job has ended: Code and Sentence say why it failed, and Rank which worker did, nil if it was none.
type End struct {
	OK       bool
	Code     cohort.Code
	Sentence string
	Rank     *cohort.Rank
}

func (OpenStore) jobEffect() {}
func (BeginNode) jobEffect() {}
func (StopNode) jobEffect()  {}
func (Dismiss) jobEffect()   {}
func (Finished) jobEffect()  {}
func (SetTimer) jobEffect()  {}

type nodeState int

const (
	waitingNode nodeState = iota // not in the current attempt
	runningNode
	stoppingNode // was asked to stop, or stops by itself
	endedNode    // its workers have ended
)

type member struct {
	id      Node
	workers int
	roles   []Role
	wish    int
	place   int // of the last attempt, -1 for none
	state   nodeState
	ok      bool
	strikes int
}

type jobPhase int

const (
	gathering jobPhase = iota // waiting for nodes
	active                    // an attempt runs
	halting                   // an attempt is being stopped
	finished
)

// Job is the machine of a job on several nodes: who takes part with which ranks, when an attempt begins, what the end of
// a worker or a node means for the others. One launcher, which hosts the rendezvous, runs it.
type Job struct {
	limits   JobLimits
	phase    jobPhase
	members  []*member
	attempt  int // of the next attempt
	restarts int
	counted  bool        // the halt counts as a restart
	lost     bool        // a node of the last attempt is lost
	code     cohort.Code // of the halt, and its reason
	why      Failure
	timer    int
	waits    bool // a timer of gathering runs
	last     bool // and it is that of the last call
	effects  []JobEffect
}

// NewJob returns the machine. Start it with [Job.Start].
func NewJob(limits JobLimits) *Job { return &Job{limits: limits} }

// Done reports whether the job has ended.
func (j *Job) Done() bool { return j.phase == finished }

// Waiting returns how many nodes are there while the job waits for more, or -1.
func (j *Job) Waiting() int {
	if j.phase != gathering {
		return -1
	}
	return len(j.members)
}

// Start begins to wait for nodes.
func (j *Job) Start() []JobEffect {
	j.effects = nil
	j.gather()
	return j.effects
}

// End ends the job for a reason outside of it.
func (j *Job) End(end End) []JobEffect {
	j.effects = nil
	if j.phase != finished {
		j.finish(end)
	}
	return j.effects
}

// Step passes the machine what happened and returns what to do, in order.
func (j *Job) Step(ev nodeEvent) []JobEffect {
	j.effects = nil
	if j.phase == finished {
		if ev, late := ev.(Joined); late {
			j.do(Dismiss{ev.Node, End{Code: cohort.Closed, Sentence: "the job has ended"}})
		}
		return j.effects
	}
	switch ev := ev.(type) {
	case Joined:
		j.joined(ev)
	case Left:
		j.left(ev)
	case Failed:
		if m := j.find(ev.Node); m != nil && m.state == runningNode {
			m.state = stoppingNode
			m.strikes++
			j.halt(ev.code(), ev.Failure, true)
		} else if m != nil && m.state == stoppingNode {
			j.note(ev.Failure)
		}
	case NodeEnded:
		j.nodeEnded(ev)
	case TimerFired:
		if ev.ID == j.timer && j.waits {
			j.waits = false
			j.timeUp()
		}
	}
	return j.effects
}

func (j *Job) do(e JobEffect) { j.effects = append(j.effects, e) }

func (j *Job) setTimer(after time.Duration) {
	j.timer++
	j.waits = true
	j.do(SetTimer{j.timer, after})
}

func (j *Job) find(n Node) *member {
	for _, m := range j.members {
		if m.id == n {
			return m
		}
	}
	return nil
}

func (j *Job) joined(ev Joined) {
	if j.find(ev.Node) != nil {
		return
	}
	m := &member{id: ev.Node, roles: ev.Roles, wish: ev.Wish, place: -1}
	for _, r := range ev.Roles {
		m.workers += r.Workers
	}
	j.members = append(j.members, m)
	if ev.Attempt > j.attempt || ev.Attempt == j.attempt && ev.Restarts > j.restarts {
		// The first attempt of this host is not the job's. Others that took part are still to join, or are lost.
		j.attempt, j.restarts, j.lost = ev.Attempt, max(j.restarts, ev.Restarts), true
		if j.restarts > j.limits.MaxRestarts {
			j.finish(End{
				Code:     cohort.PeerLost,
				Sentence: "the launcher that hosted the rendezvous is lost, and the job has no restarts left",
			})
			return
		}
	}
	switch j.phase {
	case gathering:
		j.tryBegin()
	case active:
		// A place is free: the job goes on with one node more. Nothing has failed, so it does not count.
		if j.taking() < j.limits.Max && !j.succeeding() {
			j.halt(cohort.Aborted, Failure{Sentence: "another node has joined"}, false)
		}
	case halting, finished:
	}
}

// taking counts the nodes of the current attempt.
func (j *Job) taking() int {
	n := 0
	for _, m := range j.members {
		if m.state != waitingNode {
			n++
		}
	}
	return n
}

// succeeding reports whether some node is done already: then the job is about to end, and is not stopped for a newcomer.
func (j *Job) succeeding() bool {
	return slices.ContainsFunc(j.members, func(m *member) bool { return m.state == endedNode && m.ok })
}

func (j *Job) left(ev Left) {
	m := j.find(ev.Node)
	if m == nil {
		return
	}
	j.members = slices.DeleteFunc(j.members, func(m *member) bool { return m.id == ev.Node })
	if m.state == waitingNode {
		return
	}
	j.lost = true
	switch j.phase {
	case active:
		if m.state == endedNode && m.ok {
			j.settle() // it had done its part
			return
		}
		j.halt(cohort.PeerLost, Failure{Sentence: ev.Reason}, true)
	case halting:
		if !j.counted { // it may be for want of this node that the next attempt does not begin, not for the one that has joined
			j.code, j.why = cohort.PeerLost, Failure{Sentence: ev.Reason}
		}
		j.settle()
	case gathering, finished:
	}
}

// halt stops the attempt on all nodes.
func (j *Job) halt(code cohort.Code, why Failure, counted bool) {
	if j.phase == active {
		j.phase, j.code, j.why, j.counted = halting, code, why, counted
	}
	j.counted = j.counted || counted
	for _, m := range j.members {
		if m.state == runningNode {
			m.state = stoppingNode
			j.do(StopNode{Node: m.id, Reason: why.Sentence, Linger: why.Blame > 0})
		}
	}
	j.settle()
}

func (j *Job) nodeEnded(ev NodeEnded) {
	m := j.find(ev.Node)
	if m == nil || m.state != runningNode && m.state != stoppingNode {
		return
	}
	was := m.state
	m.state, m.ok = endedNode, ev.OK
	if was == runningNode && !ev.OK {
		m.strikes++
		j.halt(ev.code(), ev.Failure, true)
		return
	}
	if !ev.OK {
		j.note(ev.Failure)
	}
	j.settle()
}

// note keeps the failure that explains the others best.
func (j *Job) note(f Failure) {
	if j.phase == halting && j.counted && f.Sentence != "" && f.Blame < j.why.Blame {
		j.code, j.why = f.code(), f
	}
}

// settle goes on when every node of the attempt has ended.
func (j *Job) settle() {
	for _, m := range j.members {
		if m.state == runningNode || m.state == stoppingNode {
			return
		}
	}
	switch j.phase {
	case active:
		j.finish(End{OK: true})
	case halting:
		if j.counted {
			if j.restarts >= j.limits.MaxRestarts {
				j.finish(End{Code: j.code, Sentence: j.why.Sentence, Rank: j.why.Rank})
				return
			}
			j.restarts++
		}
		for _, m := range j.members {
			m.state, m.ok = waitingNode, false
		}
		j.exclude()
		j.gather()
	case gathering, finished:
	}
}

// exclude leaves out nodes on which the job failed again and again, if enough others remain.
func (j *Job) exclude() {
	if j.limits.Strikes <= 0 {
		return
	}
	for _, m := range slices.Clone(j.members) {
		if m.strikes >= j.limits.Strikes && len(j.members) > j.limits.Min {
			j.members = slices.DeleteFunc(j.members, func(o *member) bool { return o == m })
			j.do(Dismiss{m.id, End{
				Code:     cohort.Remote,
				Sentence: fmt.Sprintf("%d attempts have failed on this node, and the job goes on without it", m.strikes),
			}})
		}
	}
}

func (j *Job) finish(end End) {
	j.phase = finished
	for _, m := range j.members {
		j.do(Dismiss{m.id, end})
	}
	j.do(Finished{end})
}
