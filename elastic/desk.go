// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"math"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/launchcore"
)

// The desk is the pure part of the coordinator: questions and silences in, answers out. Who takes part is decided by
// launchcore's machine; the desk knows handles and uuids.

// question is what a member asks.
type question struct {
	Member ID     `json:"member"`
	Handle string `json:"handle,omitempty"`
	Done   bool   `json:"done,omitempty"` // the member has finished and leaves
	Lost   bool   `json:"lost,omitempty"` // the member's process has ended, reported by another process
	// untaken says that the answer to the member's last question is still in the store: members delete what they have read, so this
	// question repeats that one, because no answer came in time.
	untaken bool
}

// answer is the reply to it. Exactly one of the first three fields is set.
type answer struct {
	*Round
	Done  bool   `json:"done,omitempty"`
	Error string `json:"error,omitempty"`
	// Silent are the members that had not responded at the end of the job, for the process that has started them.
	Silent []ID `json:"silent,omitempty"`
}

// Round is the members of a group: give it to Reconfigure.
type Round struct {
	UUID    int64    `json:"uuid"`
	Handles []string `json:"handles"`
}

// effects are what the driver has to do, in this order.
type effects struct {
	over    []int64 // rounds that have ended
	record  *record // of a round that begins, of which a member is notified again, or in which one has finished; or nil
	stale   int64   // an answer that is not awaited any more, or 0
	answers map[int64]answer
	timers  []launchcore.SetTimer
	ended   bool
	why     string // "" when all members finished
}

// seat is what the desk knows about a member.
type seat struct {
	member  ID
	node    launchcore.Node
	handle  string
	latest  int64 // its last question
	pending int64 // the same if it is not answered, 0 if it is
	running bool  // in the round
	again   bool  // it was notified of the round a second time
	back    bool  // it was in the round, and has asked for the next one
	done    bool
}

type desk struct {
	job      *launchcore.Job
	epoch    int64
	patience time.Duration
	seats    []*seat // by arrival
	nodes    launchcore.Node
	round    *Round
	kept     record // of the round
	over     bool   // the round has ended, and members are on their way back
	done     bool   // a member of the round has finished
	waits    int    // the timer of rejoinTimeout, 0 for none
	now      effects
}

// rejoinTimer keeps the desk's own timer apart from those of the machine.
const rejoinTimer = math.MaxInt32

func newDesk(epoch int64, c config) *desk {
	return &desk{epoch: epoch, patience: c.patience, job: launchcore.NewJob(launchcore.JobLimits{
		Min: c.low, Max: c.high, MaxRestarts: c.failures, LastCall: c.lastCall, Join: c.join,
	})}
}

// resume takes up the round of an earlier desk. over says that it has ended. untold are questions that are still there: that desk
// may have died before it had answered them, or after that.
func (d *desk) resume(r record, over bool, untold []int64) effects {
	d.round, d.kept = &Round{UUID: r.UUID, Handles: r.Handles}, r
	var nodes []launchcore.Node
	for i, m := range r.Members {
		d.nodes++
		d.seats = append(d.seats, &seat{
			member: m, node: d.nodes, running: true, handle: r.Handles[i], latest: r.Questions[i], again: slices.Contains(r.Again, m),
		})
		nodes = append(nodes, d.nodes)
	}
	d.job.Resume(nodes, r.Failures)
	return d.step(func() {
		if over {
			d.end()
		}
		d.resumeDone()
		for _, s := range d.seats {
			if slices.Contains(untold, s.latest) {
				d.resendRound(s)
				s.again = true
			}
		}
	})
}

// resumeDone takes up that members of the round have finished. They may have been notified and have left. A question of one that waits for
// the others is still to come.
func (d *desk) resumeDone() {
	for _, s := range d.seats {
		if !slices.Contains(d.kept.Done, s.member) {
			continue
		}
		s.running, s.done, d.done = false, true, true
		if d.finish() {
			return
		}
		d.perform(d.job.Step(launchcore.NodeEnded{Node: s.node, OK: true}))
	}
	if d.over {
		d.releaseDone()
	}
}

func (d *desk) start() effects { return d.step(func() { d.perform(d.job.Start()) }) }

// asked takes a question.
func (d *desk) asked(number int64, q question) effects {
	return d.step(func() {
		s := d.find(q.Member)
		if s == nil && q.Done {
			d.now.answers[number] = answer{Done: true}
			if slices.Contains(d.kept.Members, q.Member) { // it was declared dead
				d.done = true
				d.keepDone(q.Member)
				d.finish()
			}
			return
		}
		if s == nil {
			d.nodes++
			s = &seat{member: q.Member, node: d.nodes}
			d.seats = append(d.seats, s)
			s.handle, s.pending, s.latest = q.Handle, number, number
			d.perform(d.job.Step(launchcore.Joined{Node: s.node, Roles: []launchcore.Role{{Workers: 1}}, Wish: -1}))
			return
		}
		if number <= s.latest {
			// it arrived late: the member has asked again, and may be about to read that answer; or an earlier coordinator has answered it
			return
		}
		if q.untaken {
			d.now.stale = s.latest
		}
		if s.running && !d.over && q.untaken && q.Handle == s.handle && !s.again {
			// The question crossed the answer, which the member no longer looks for. Nothing has failed. Only once: a member that
			// does not delete answers would otherwise be notified for ever of a round that has failed.
			s.latest = number
			d.resendRound(s)
			return
		}
		s.handle, s.pending, s.latest = q.Handle, number, number
		if !s.running {
			if q.Done && !s.done { // it does not wait for the next round any more
				d.now.answers[number] = answer{Done: true}
				d.remove(s, "a member does not wait")
			}
			return // it asks again: the last question counts
		}
		s.running = false
		if q.Done {
			s.done, d.done = true, true
			d.keepDone(s.member)
			switch {
			case d.finish():
			case d.over: // it has not noticed, and does not return
				d.releaseDone()
			default:
				d.perform(d.job.Step(launchcore.NodeEnded{Node: s.node, OK: true}))
			}
			return
		}
		s.back = true
		d.releaseDone()
		d.end()
		d.perform(d.job.Step(launchcore.NodeEnded{Node: s.node, Failure: launchcore.Failure{Sentence: "a member's group has failed"}}))
	})
}

// silent takes out a member that has not responded.
func (d *desk) silent(member ID) effects {
	return d.step(func() {
		if s := d.find(member); s != nil {
			d.remove(s, "a member has not responded")
		}
	})
}

// fired takes the end of a timer.
func (d *desk) fired(id int) effects {
	return d.step(func() {
		if id < rejoinTimer {
			d.perform(d.job.Step(launchcore.TimerFired{ID: id}))
			return
		}
		if id != rejoinTimer+d.waits || !d.over {
			return
		}
		var late []*seat // the last that is taken out may begin the next round, with others
		for _, s := range d.seats {
			if s.running {
				late = append(late, s)
			}
		}
		for _, s := range late {
			d.remove(s, "a member did not return in time")
		}
	})
}

func (d *desk) step(f func()) effects {
	d.now = effects{answers: map[int64]answer{}}
	f()
	return d.now
}

// releaseDone lets members go that have finished, before a round ends in which others have not: they do not return.
func (d *desk) releaseDone() {
	for _, s := range slices.Clone(d.seats) {
		if s.done {
			d.seats = slices.DeleteFunc(d.seats, func(o *seat) bool { return o == s })
			if s.pending > 0 {
				d.now.answers[s.pending] = answer{Done: true}
			}
			d.perform(d.job.Step(launchcore.Left{Node: s.node, Reason: "a member has finished"}))
		}
	}
}

// finish ends the job if its work is done: a member of the round has finished, and the others have too, or are lost. Spares and
// newcomers would begin again from nothing.
func (d *desk) finish() bool {
	if !d.done || slices.ContainsFunc(d.seats, func(s *seat) bool { return s.running || s.back }) {
		return false
	}
	d.perform(d.job.End(launchcore.End{OK: true}))
	return true
}

// latest is the number of a member's last question, 0 if it has asked none.
func (d *desk) latest(member ID) int64 {
	if s := d.find(member); s != nil {
		return s.latest
	}
	return 0
}

func (d *desk) find(member ID) *seat {
	for _, s := range d.seats {
		if s.member == member {
			return s
		}
	}
	return nil
}

func (d *desk) remove(s *seat, why string) {
	d.seats = slices.DeleteFunc(d.seats, func(o *seat) bool { return o == s })
	if d.finish() {
		return
	}
	if s.running {
		d.releaseDone()
		d.end() // it may be alive, and read it
	}
	d.perform(d.job.Step(launchcore.Left{Node: s.node, Reason: why}))
}

func (d *desk) byNode(n launchcore.Node) *seat {
	for _, s := range d.seats {
		if s.node == n {
			return s
		}
	}
	return nil
}

func (d *desk) perform(list []launchcore.JobEffect) {
	var members []*seat
	failures := 0
	for _, e := range list {
		switch e := e.(type) {
		case launchcore.OpenStore:
			uuid := d.epoch<<32 | int64(e.Attempt)
			d.round, d.over, d.done = &Round{UUID: uuid}, false, false
		case launchcore.BeginNode:
			members, failures = append(members, d.byNode(e.Node)), e.Restarts
		case launchcore.StopNode:
			d.end()
		case launchcore.Dismiss:
			if s := d.byNode(e.Node); s != nil && s.pending > 0 {
				d.now.answers[s.pending] = answer{Done: e.OK, Error: e.Sentence}
				s.pending = 0
			}
		case launchcore.Finished:
			d.now.ended = true
			if !e.OK {
				d.now.why = e.Sentence
			}
		case launchcore.SetTimer:
			d.now.timers = append(d.now.timers, e)
		}
	}
	if len(members) > 0 {
		d.begin(members, failures)
	}
}

// begin answers the members of a round.
func (d *desk) begin(members []*seat, failures int) {
	d.now.record = &record{UUID: d.round.UUID, Failures: failures}
	for _, s := range members {
		d.round.Handles = append(d.round.Handles, s.handle)
		d.now.record.Members = append(d.now.record.Members, s.member)
		d.now.record.Questions = append(d.now.record.Questions, s.pending)
	}
	d.now.record.Handles = d.round.Handles
	d.kept = *d.now.record
	for _, s := range members {
		s.running, s.again, s.back = true, false, false
		d.now.answers[s.pending] = answer{Round: d.round}
		s.pending = 0
	}
}

// resendRound answers a member with the round that goes on, and writes that down first: a desk that takes over would take the member's
// next question, which says that the round has failed, for another repetition.
func (d *desk) resendRound(s *seat) {
	d.now.answers[s.latest] = answer{Round: d.round}
	d.kept.Questions = slices.Clone(d.kept.Questions)
	d.kept.Questions[slices.Index(d.kept.Members, s.member)] = s.latest
	if !s.again {
		s.again = true
		d.kept.Again = append(slices.Clone(d.kept.Again), s.member)
	}
	kept := d.kept
	d.now.record = &kept
}

// keepDone writes down that a member has finished: a desk that takes over does not find its question, if it was answered, and would
// wait for the member.
func (d *desk) keepDone(member ID) {
	if slices.Contains(d.kept.Done, member) {
		return
	}
	d.kept.Done = append(slices.Clone(d.kept.Done), member)
	kept := d.kept
	d.now.record = &kept
}

// end says that the round is over, for those of its members that have not noticed.
func (d *desk) end() {
	if d.over {
		return
	}
	d.over = true
	d.now.over = append(d.now.over, d.round.UUID)
	d.waits++
	d.now.timers = append(d.now.timers, launchcore.SetTimer{ID: rejoinTimer + d.waits, After: d.patience})
}
