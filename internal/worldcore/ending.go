// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

// EndOptions turn parts of the protocol off. The simulation uses them to show that each part is needed; production leaves them
// alone.
type EndOptions struct {
	NoMeeting bool // calls are counted without everybody having been idle before
	NoFreeze  bool // calls may begin while they are counted
	NoLook    bool // whoever is gone in the last wait is taken for dead
}

// Action is what the driver has to do next. It reports the result as an [EndEvent].
type Action uint8

// The actions, with the events that answer them. Each may be answered by [Failed] instead.
const (
	FindBarrier Action = 1 + iota // find out which barrier is the first of this end: Found
	WaitIdle                      // wait until no call of this worker is under way: Idle
	Meet                          // enter barrier N with nothing to add and wait for all: Passed
	Count                         // let no call begin, enter barrier N with the number of calls, wait for all, let calls begin: Passed
	Arrive                        // say that the world is over, and enter barrier N, the last one: Arrived
	WaitLast                      // wait until all have entered barrier N: Passed. Gone workers may have left or died
	Look                          // look whether barrier N is ended by those who are still there, for a while: Looked
	Name                          // agree with the others on the first death, for which Worker is known here: Named
	End                           // leave; Outcome says how it ended
)

// EndEventKind is the kind of an [EndEvent].
type EndEventKind uint8

// The events.
const (
	Begin   EndEventKind = 1 + iota // the worker wants to leave
	Found                           // N is the first barrier
	Idle                            // no call of this worker is under way
	Passed                          // all have entered the barrier; Sum is what they have added
	Arrived                         // this worker has entered the last barrier; All says that it was the last one
	Looked                          // Open says that the barrier did not end, although the store was there to tell
	Named                           // Worker is the first one that died
	Failed                          // the action failed: Worker is gone, or the store is lost, or something else
)

// EndEvent is what has happened.
type EndEvent struct {
	Kind      EndEventKind
	N         int
	Sum       int64
	All, Open bool
	Worker    string
	StoreLost bool
}

// Outcome is how a worker has left.
type Outcome uint8

// The outcomes.
const (
	InOrder Outcome = 1 + iota // everybody has come to the end
	Death                      // Worker has died before
	Failure                    // for the reason of the last Failed
)

// Step is what is to be done next.
type Step struct {
	Action  Action
	N       int
	Outcome Outcome
	Worker  string
}

// Ending decides how one worker of a static world leaves it in order. Its zero value is ready for Begin.
//
// All workers meet when they are idle, then count the calls that have begun since, by handlers of others' calls. If there is
// none, there will be none: only calls bring about calls. Otherwise they do it again. In the last barrier they only wait for
// each other's way out.
type Ending struct {
	EndOptions
	at     Action
	n      int
	worker string // who was found gone in the last wait
}

// Step takes an event and returns what to do next.
func (e *Ending) Step(ev EndEvent) Step {
	if ev.Kind == Failed {
		return e.failed(ev)
	}
	switch e.at {
	case 0:
		return e.act(FindBarrier)
	case FindBarrier:
		e.n = ev.N
		return e.act(WaitIdle)
	case WaitIdle:
		if e.NoMeeting {
			e.n++
			return e.act(Count)
		}
		return e.act(Meet)
	case Meet:
		e.n++
		return e.act(Count)
	case Count:
		e.n++
		if ev.Sum != 0 {
			return e.act(WaitIdle)
		}
		return e.act(Arrive)
	case Arrive:
		if ev.All {
			return e.end(InOrder, "")
		}
		return e.act(WaitLast)
	case WaitLast:
		return e.end(InOrder, "")
	case Look:
		if !ev.Open {
			return e.end(InOrder, "")
		}
		return e.act(Name)
	case Name:
		return e.end(Death, ev.Worker)
	default: // it is over
		return Step{Action: End}
	}
}

// failed decides what the failure of an action means.
func (e *Ending) failed(ev EndEvent) Step {
	switch {
	case e.at != WaitLast && ev.Worker != "":
		return e.end(Death, ev.Worker)
	case e.at != WaitLast:
		return e.end(Failure, "")
	case ev.Worker != "" && e.NoLook:
		e.worker = ev.Worker
		return e.act(Name)
	case ev.Worker != "": // the last ones go without waiting for those behind them
		e.worker = ev.Worker
		return e.act(Look)
	case ev.StoreLost: // whoever hosted it has gone, which it does last
		return e.end(InOrder, "")
	default:
		return e.end(Failure, "")
	}
}

func (e *Ending) act(a Action) Step {
	e.at = a
	return Step{Action: a, N: e.n, Worker: e.worker}
}

func (e *Ending) end(how Outcome, worker string) Step {
	e.at = End
	return Step{Action: End, Outcome: how, Worker: worker}
}
