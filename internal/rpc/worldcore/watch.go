// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
)

const (
	// watchEvery is how often a watcher looks at its workers.
	watchEvery = 200 * time.Millisecond
	// unconnectedAfter is how long a wait lasts before workers are called to which there was no connection so far.
	unconnectedAfter = 500 * time.Millisecond
	// askEvery is how many looks there are to one at what others have found.
	askEvery = 5
	// silentFor is how long the machine of a worker answers nothing at all before it is given up. The kernel asks an
	// idle connection every few seconds.
	silentFor = 20 * time.Second
	// graceOfDeath and graceOfLeave are how much longer an open wait may last.
	graceOfDeath = time.Second
	graceOfLeave = 5 * time.Second
	// recordTime is how long the store may take to say which death was the first.
	recordTime = time.Second
)

// State is how this worker stands with another one.
type State struct {
	Known     bool // a member
	ID        int
	Met       bool          // there was a connection
	Connected bool          // there is one
	Silence   time.Duration // how long the other machine has answered nothing at all on it
}

// rank is the id of a worker for an error.
func (s State) rank() int {
	if !s.Known {
		return int(cohort.NoRank)
	}
	return s.ID
}

// How this worker knows of a death.
const (
	processEnded = "its process has ended: nothing listens at its address"
	foundByOther = "another worker has found that it has ended"
	alwaysCutOff = "it was asked again and again, and the connection ended each time"
)

// Wait says what it means when a worker is gone.
type Wait int8

const (
	// ClosedWait is one that no worker leaves before this one: a worker has died.
	ClosedWait Wait = iota
	// OpenWait is one that others may leave before: what they have seen is on its way to us, and the wait goes on a little.
	OpenWait
	// leaderWait is a closed one in which only this worker looks after all the others: it calls every one of them.
	leaderWait
	// LastWait is the last one, after which everybody goes: the caller decides what it means.
	LastWait
)

// Watch looks after workers that another waits for. A connection that ended says nothing about the process behind it: a
// worker without one is called again, and only if nothing listens there any more it is dead, and the wait is over. So it is
// when the worker's machine answers nothing for a while.
//
// There need not have been a connection: when the wait lasts, unconnected workers are called too. In a static world the
// workers share this, and tell each other in the store whom they have found dead.
//
// The machine is in one state, watching, with several operations under way, until it ends with the death that ends the
// wait: one look at everybody at a time, one probe to each worker, one question to the store.
type Watch struct {
	course
	me    Self
	names []string // who is looked after
	among []string // who takes part: the death of others does not matter
	how   Wait

	looks  int
	asked  bool // for those who are unconnected
	asking bool // one question to the store at a time: it may not answer
	call   []string
	probes map[string]*probe
	ids    map[string]int
	found  *cohort.Error // a death that is being recorded
	dead   *cohort.Error
}

// probe is what is known about a worker without a connection.
type probe struct {
	busy   bool
	silent bool
	since  time.Duration // it cannot be reached
}

// NewWatch returns the machine of a wait for some workers, in the world of a round. among are all who take part in what is
// waited for: the first death among them is the cause of the others.
func NewWatch(me Self, round int, names, among []string, how Wait) *Watch {
	w := &Watch{me: me, names: names, among: among, how: how, probes: map[string]*probe{}, ids: map[string]int{}}
	for _, name := range names {
		w.probes[name] = &probe{}
	}
	w.round = round
	w.begin(w.wait)
	w.failed = func(error) {} // what cannot be asked now is asked again
	return w
}

// Dead is who has died, if one has, also when the wait has not ended because of it. It need not be the first one then.
func (w *Watch) Dead() *cohort.Error {
	if w.dead == nil {
		return w.found
	}
	return w.dead
}

// wait lets some time pass before the next look.
func (w *Watch) wait() { w.do(Op{Kind: OpPause, For: watchEvery}, func(ev Event) { w.tick(ev.Err) }) }

func (w *Watch) tick(err error) {
	if err != nil { // the time of the caller is over
		w.end(nil)
		return
	}
	w.looks++
	if !w.asked && w.now >= unconnectedAfter {
		w.asked = true
		w.findUnconnected()
	}
	if w.looks%askEvery == 0 && !w.asking && w.me.Static() {
		w.asking = true
		w.do(Op{Kind: OpRead, Round: w.round, Key: KeyLost}, func(ev Event) {
			w.asking = false
			if loss := parseLoss(ev.Text); loss.among(w.among) {
				w.known(loss)
			}
		})
	}
	w.do(Op{Kind: OpStates, Names: w.names}, func(ev Event) {
		w.wait()
		for i, s := range ev.States {
			w.see(w.names[i], s)
		}
	})
}

// see checks on a worker. One without a connection is called.
func (w *Watch) see(name string, s State) {
	if w.dead != nil {
		return
	}
	if !s.Known { // of a dynamic world
		e := deathOf(name, int(cohort.NoRank), "it has left", nil)
		w.lost(e, graceOfLeave)
		return
	}
	w.ids[name] = s.ID
	v := w.probes[name]
	switch {
	case v.busy || !s.Met && !slices.Contains(w.call, name):
	case s.Connected && s.Silence < silentFor:
		v.silent = false
	case s.Connected:
		v.busy = true
		w.gone(name, "its machine does not answer", nil)
	default:
		v.busy = true
		if !v.silent {
			v.silent, v.since = true, w.now
		}
		w.do(Op{Kind: OpReach, Worker: name, For: 2 * silentFor}, func(ev Event) { w.probed(name, v, ev) })
	}
}

// probed takes the answer of a worker, or that there is none.
func (w *Watch) probed(name string, v *probe, ev Event) {
	switch {
	case ev.Gone:
		w.gone(name, processEnded, ev.Err)
		return
	case !ev.Silent:
		v.silent = false
	case w.now-v.since >= silentFor/2:
		w.gone(name, "its machine does not answer", ev.Err)
		return
	}
	v.busy = false
}

// gone ends the wait for a worker and notifies the others, unless they know of an earlier death: then that is the cause.
func (w *Watch) gone(name, how string, cause error) {
	e := deathOf(name, w.ids[name], how, cause)
	if w.how == LastWait || !w.me.Static() {
		w.lost(e, graceOfDeath)
		return
	}
	if w.found == nil {
		w.found = e
	}
	w.do(Op{Kind: OpSwap, Round: w.round, Key: KeyLost, Text: name, For: recordTime}, func(ev Event) {
		if first := parseLoss(ev.Text); ev.Err == nil && ev.Text != name && first.among(w.among) {
			w.known(first)
			return
		}
		w.lost(e, graceOfDeath)
	})
}

// known ends the wait because of a loss that is recorded.
func (w *Watch) known(loss Loss) {
	w.do(Op{Kind: OpStates, Names: []string{loss.Worker}}, func(ev Event) {
		w.lost(loss.err(ev.States[0].rank()), graceOfDeath)
	})
}

// lost ends the wait, unless another death does, or it ends well within the grace where that may be.
func (w *Watch) lost(e *cohort.Error, grace time.Duration) {
	if w.dead != nil {
		return
	}
	w.dead = e
	if w.how == OpenWait {
		w.do(Op{Kind: OpPause, For: grace}, func(ev Event) {
			if ev.Err == nil {
				w.end(e)
			}
		})
		return
	}
	w.end(e)
}

// findUnconnected finds the workers that this one calls, once a wait lasts, although it had nothing to do with them. In
// a static world, unless no other worker does it, it is those behind it in the order of ranks up to the second Go
// worker: so every worker is watched by two, and a large world does not end with a connection of everybody to
// everybody.
func (w *Watch) findUnconnected() {
	if !w.me.Static() || w.how == leaderWait {
		w.call = w.names
		return
	}
	w.must(Op{Kind: OpWorkers}, func(ev Event) {
		all := ev.Workers
		at := slices.IndexFunc(all, func(x Worker) bool { return x.Name == w.me.Name })
		behind := slices.Concat(all[at+1:], all[:max(at, 0)])
		goWorkers, call := 0, []string{}
		inOrder(behind, func(x Worker, next func()) {
			if goWorkers == 2 {
				next()
				return
			}
			w.do(Op{Kind: OpIsGo, Worker: x.Name}, func(ev Event) {
				if ev.OK {
					goWorkers++
				}
				call = append(call, x.Name)
				next()
			})
		}, func() { w.call = call })
	})
}
