// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launchcore

import "time"

// Worker is a worker's number on its node: PyTorch's LOCAL_RANK.
type Worker int

// Signal is a signal's number.
type Signal int

// The signals that the machine sends by itself.
const (
	SIGINT  Signal = 2
	SIGKILL Signal = 9
	SIGTERM Signal = 15
)

// Limits are the times that a group is given.
type Limits struct {
	// Evidence bounds the time between a failure and the first signal that is spent on looking at the workers.
	Evidence time.Duration
	// Linger is how long the group waits for the cause of a failure that looks like a consequence: a worker that lost
	// its connection to a peer often ends before the peer has printed why it failed.
	Linger time.Duration
	// Grace is the time between the first signal and SIGKILL: torchrun's --shutdown-timeout.
	Grace time.Duration
	// Interrupt is the time after which workers that do not react to SIGINT are sent SIGTERM: Python's handler cannot
	// run while the interpreter waits in C++.
	Interrupt time.Duration
	// Kill bounds the wait after SIGKILL: a process in the kernel's hands may not end.
	Kill time.Duration
	// Spares is how many workers may fail while the others go on.
	Spares int
}

// Exit says how a worker ended.
type Exit struct {
	Worker Worker
	// Code is the exit status, or -N for signal N, as Python's subprocess has it.
	Code int
	// Consequence says that the worker's last output names another one's end: a lost connection, a time-out.
	Consequence bool
	// AfterSignal says that the group was being stopped when the worker ended.
	AfterSignal bool
	// Spared says that the worker failed and the others continued without it.
	Spared bool
}

// Failed reports whether the worker did not succeed.
func (e Exit) Failed() bool { return e.Code != 0 }

// Outcome is how a group ended.
type Outcome struct {
	// Exits are the ends in the order in which they were seen.
	Exits []Exit
	// Signal is the signal that the user ended the group with, or 0.
	Signal Signal
	// Stopped says that something outside the group ended it.
	Stopped bool
	// Hung says that the group was stopped because it hung.
	Hung bool
	// Immortal are the workers that did not end after SIGKILL.
	Immortal []Worker
}

// Succeeded reports whether every worker that was not spared ended with 0 and was not stopped.
func (o Outcome) Succeeded() bool {
	if o.Signal != 0 || o.Stopped || o.Hung || len(o.Immortal) > 0 {
		return false
	}
	for _, e := range o.Exits {
		if e.Failed() && !e.Spared {
			return false
		}
	}
	return true
}

type phase int

const (
	idle       phase = iota
	running          // workers run
	collecting       // one failed, or all are to be stopped: evidence is being taken
	lingering        // waiting for the cause
	marking          // to be interrupted as soon as it is known where the workers are
	stopping         // signalled
	killing          // sent SIGKILL
	sweeping         // all workers have ended, their descendants are being removed
	ended
)

// Group is the machine of one attempt of the workers of one node.
type Group struct {
	limits  Limits
	phase   phase
	alive   []bool
	living  int
	outcome Outcome
	// linger says that the sender of Stop does not know the cause, which may be one of these workers.
	linger bool
	// interrupted says that the workers were sent SIGINT and are not yet known to have noticed.
	interrupted bool
	graceLeft   time.Duration // what is left of Grace when the timer ends
	timer       int
	effects     []Effect
}

// NewGroup returns the machine for n workers.
func NewGroup(n int, limits Limits) *Group {
	return &Group{limits: limits, alive: make([]bool, n)}
}

// Ended reports whether the group has ended.
func (g *Group) Ended() bool { return g.phase == ended }

// Marking reports whether [Marked] is awaited: no worker has been interrupted yet.
func (g *Group) Marking() bool { return g.phase == marking }

// Step passes the machine what happened and returns what to do, in order.
func (g *Group) Step(ev Event) []Effect {
	g.effects = nil
	switch ev := ev.(type) {
	case Begin:
		g.begin()
	case Exited:
		g.exited(Exit{Worker: ev.Worker, Code: ev.Code, Consequence: ev.Consequence})
	case Refused:
		g.refused(ev)
	case EvidenceTaken:
		if g.phase == collecting {
			g.judge()
		}
	case Stop:
		g.stopSoon(ev.Linger)
	case Hung:
		if g.phase == running {
			g.outcome.Hung = true
			g.collect()
		}
	case UserSignal:
		g.userSignal(ev.Signal)
	case PassedSignal:
		if g.living > 0 {
			g.do(Pass{g.survivors(), ev.Signal})
		}
	case Marked:
		if g.phase == marking {
			g.signal(SIGINT)
		}
	case Stuck:
		if g.phase == stopping {
			g.send(ev.Workers, SIGTERM)
		}
	case Swept:
		if g.phase == sweeping {
			g.end()
		}
	case TimerFired:
		if ev.ID == g.timer {
			g.timeUp()
		}
	}
	return g.effects
}

func (g *Group) do(e Effect) { g.effects = append(g.effects, e) }

func (g *Group) setTimer(after time.Duration) {
	g.timer++
	g.do(SetTimer{g.timer, after})
}

// survivors lists the workers that have not ended.
func (g *Group) survivors() []Worker {
	var all []Worker
	for w, alive := range g.alive {
		if alive {
			all = append(all, Worker(w))
		}
	}
	return all
}

// send sends a signal to those of the workers that have not ended.
func (g *Group) send(workers []Worker, s Signal) {
	var to []Worker
	for _, w := range workers {
		if int(w) >= 0 && int(w) < len(g.alive) && g.alive[w] {
			to = append(to, w)
		}
	}
	if len(to) > 0 {
		g.do(Send{to, s})
	}
}

func (g *Group) begin() {
	if g.phase != idle {
		return
	}
	g.phase = running
	for w := range g.alive {
		g.alive[w] = true
	}
	g.living = len(g.alive)
	g.do(Start{})
}

func (g *Group) exited(e Exit) {
	if int(e.Worker) < 0 || int(e.Worker) >= len(g.alive) || !g.alive[e.Worker] {
		return
	}
	g.alive[e.Worker] = false
	g.living--
	e.AfterSignal = g.phase >= stopping
	if e.Spared = g.phase == running && e.Failed() && g.limits.Spares > 0; e.Spared {
		g.limits.Spares--
		g.do(GoOn{e.Worker, g.limits.Spares})
	}
	g.outcome.Exits = append(g.outcome.Exits, e)
	switch {
	case g.phase == running && e.Failed() && !e.Spared:
		g.collect()
	case g.phase == collecting:
		// The evidence is still being taken, also when no worker is left: it holds the last lines and the store's view.
	case g.living == 0:
		g.sweep()
	case g.phase == lingering && e.Failed() && !e.Consequence:
		g.stop(SIGTERM)
	}
}

func (g *Group) refused(ev Refused) {
	g.limits.Spares = 0 // workers are not started after that
	for w := int(ev.Worker) + 1; ev.Rest && w < len(g.alive); w++ {
		if g.alive[w] {
			g.alive[w] = false
			g.living--
		}
	}
	g.exited(Exit{Worker: ev.Worker, Code: 127})
}

func (g *Group) collect() {
	g.phase = collecting
	g.do(TakeEvidence{Hung: g.outcome.Hung})
	g.setTimer(g.limits.Evidence)
}

// judge decides what follows once the evidence is there.
func (g *Group) judge() {
	o := g.outcome
	if !o.Stopped && o.Signal == 0 {
		g.do(Failing{Hung: o.Hung})
	}
	switch {
	case g.living == 0:
		g.sweep()
	case o.Signal != 0:
		g.stop(o.Signal)
	case !o.Hung && g.consequencesOnly() && (!o.Stopped || g.linger) && g.limits.Linger > 0:
		g.phase = lingering
		g.setTimer(g.limits.Linger)
	default:
		g.stop(SIGTERM)
	}
}

// consequencesOnly reports whether no failure explains itself.
func (g *Group) consequencesOnly() bool {
	for _, e := range g.outcome.Exits {
		if e.Failed() && !e.Consequence && !e.Spared {
			return false
		}
	}
	return true
}

func (g *Group) stop(s Signal) {
	switch {
	case g.living == 0:
		g.sweep()
	case s == SIGINT && g.limits.Interrupt < g.limits.Grace:
		g.phase = marking
		g.do(Mark{g.survivors()})
		g.setTimer(g.limits.Interrupt)
	default:
		g.signal(s)
	}
}

// signal sends the first signal.
func (g *Group) signal(s Signal) {
	g.phase, g.graceLeft, g.interrupted = stopping, g.limits.Grace, s == SIGINT
	g.do(Send{g.survivors(), s})
	if g.interrupted {
		g.wait(g.limits.Interrupt)
	} else {
		g.wait(2 * g.limits.Interrupt)
	}
}

// wait spends a part of the time that signalled workers have.
func (g *Group) wait(d time.Duration) {
	d = min(d, g.graceLeft)
	g.graceLeft -= d
	g.setTimer(d)
}

// stopSoon stops the group for a reason outside of it.
func (g *Group) stopSoon(linger bool) {
	if g.phase >= stopping {
		return
	}
	g.outcome.Stopped, g.linger = true, linger
	switch {
	case g.phase == idle:
		g.end()
	case g.phase == running:
		g.collect()
	case g.phase == lingering && !linger:
		g.stop(SIGTERM)
	} // else it goes on when the evidence is there, when the time is over, or with the SIGINT that the user asked for
}

func (g *Group) kill() {
	g.phase = killing
	g.do(Send{g.survivors(), SIGKILL})
	g.setTimer(g.limits.Kill)
}

func (g *Group) sweep() {
	g.phase = sweeping
	g.do(Sweep{})
	g.setTimer(g.limits.Kill)
}

func (g *Group) end() {
	g.phase = ended
	g.outcome.Immortal = g.survivors()
	g.do(Ended{g.outcome})
}

func (g *Group) userSignal(s Signal) {
	again := g.outcome.Signal != 0 || g.phase == stopping
	if g.phase <= stopping && g.outcome.Signal == 0 {
		g.outcome.Signal = s
	}
	switch {
	case g.phase == idle:
		g.end()
	case g.phase > stopping, g.living == 0: // it ends already
	case again:
		// The user asks again, or asks while the group is being stopped after a failure: no more grace.
		if g.phase != stopping {
			g.signal(g.outcome.Signal) // no worker is killed without a warning
		}
		g.kill()
	case g.phase == running:
		g.collect()
	case g.phase == lingering:
		g.stop(s)
	}
}

// escalateToKill does what follows when workers that were signalled still run.
func (g *Group) escalateToKill() {
	switch {
	case g.graceLeft == 0:
		g.kill()
	case g.interrupted:
		g.interrupted = false
		g.do(FindStuck{g.survivors()})
		g.wait(g.limits.Interrupt)
	default:
		g.do(Waits{g.survivors(), g.graceLeft})
		g.wait(g.graceLeft)
	}
}

func (g *Group) timeUp() {
	switch g.phase {
	case collecting: // the evidence is late: what there is must do
		g.judge()
	case lingering:
		g.stop(SIGTERM)
	case marking: // the machine is busy: workers that could not be inspected have to react by themselves
		g.signal(SIGINT)
	case stopping:
		g.escalateToKill()
	case killing: // some worker does not end
		g.sweep()
	case sweeping:
		g.end()
	case idle, running, ended:
	}
}
