// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launchcore makes the decisions of the launcher, without processes, clocks or sockets.
//
// [Group] is the state machine of the workers on one node during one attempt: when evidence is collected, who is
// signalled and when, and when waiting ends. A driver passes it what happened (Step) and carries out the effects that it
// returns.
package launchcore

import "time"

// Event is something that happened to the group. Its types are [Begin], [Exited], [Refused], [EvidenceTaken], [Stop],
// [UserSignal], [PassedSignal], [Hung], [Marked], [Stuck], [Swept] and [TimerFired].
type Event interface{ event() }

type (
	// Begin starts the workers.
	Begin struct{}
	// Exited is the end of a worker.
	Exited struct {
		Worker      Worker
		Code        int
		Consequence bool
	}
	// Refused says that a worker could not be started. It counts as an end with code 127. Rest says that those with higher numbers were
	// not even tried.
	Refused struct {
		Worker Worker
		Rest   bool
	}
	// EvidenceTaken answers [TakeEvidence].
	EvidenceTaken struct{}
	// Stop ends the group because of something outside: another node failed, or the job's membership changes. Linger
	// says that the cause may be one of these workers, which is given time to show itself.
	Stop struct{ Linger bool }
	// UserSignal is a signal that the launcher received and that ends the job.
	UserSignal struct{ Signal Signal }
	// PassedSignal is a signal that the launcher received and that is only passed on.
	PassedSignal struct{ Signal Signal }
	// Hung says that the watch found the group to stand still and that it has to be stopped.
	Hung struct{}
	// Marked answers [Mark].
	Marked struct{}
	// Stuck answers [FindStuck]: the workers that did not move since they were signalled.
	Stuck struct{ Workers []Worker }
	// Swept answers [Sweep].
	Swept struct{}
	// TimerFired is the end of a [SetTimer].
	TimerFired struct{ ID int }
)

func (Begin) event()         {}
func (Exited) event()        {}
func (Refused) event()       {}
func (EvidenceTaken) event() {}
func (Stop) event()          {}
func (UserSignal) event()    {}
func (PassedSignal) event()  {}
func (Hung) event()          {}
func (Marked) event()        {}
func (Stuck) event()         {}
func (Swept) event()         {}
func (TimerFired) event()    {}

// Effect is something that the driver has to do.
type Effect interface{ effect() }

type (
	// Start starts all workers.
	Start struct{}
	// TakeEvidence looks at the workers that live; answered by [EvidenceTaken].
	TakeEvidence struct{ Hung bool }
	// Send sends a signal to the process groups of the workers.
	Send struct {
		Workers []Worker
		Signal  Signal
	}
	// Pass passes on a signal that does not end the job.
	Pass struct {
		Workers []Worker
		Signal  Signal
	}
	// Mark asks to remember where the workers are, before they are interrupted; answered by [Marked].
	Mark struct{ Workers []Worker }
	// FindStuck asks which of the workers have not moved since [Mark]; answered by [Stuck].
	FindStuck struct{ Workers []Worker }
	// Waits says that workers which were signalled still run, and how long they may before they are killed.
	Waits struct {
		Workers []Worker
		Left    time.Duration
	}
	// Sweep kills what is left of the workers' descendants; answered by [Swept].
	Sweep struct{}
	// SetTimer asks for a [TimerFired] with this ID. A later timer replaces an earlier one.
	SetTimer struct {
		ID    int
		After time.Duration
	}
	// GoOn says that a worker has failed and the others go on; so many more may fail.
	GoOn struct {
		Worker Worker
		Spares int
	}
	// Failing notifies the rest of the job that this group has failed and is about to be stopped.
	Failing struct{ Hung bool }
	// Ended is the last effect.
	Ended struct{ Outcome Outcome }
)

func (Start) effect()        {}
func (TakeEvidence) effect() {}
func (Send) effect()         {}
func (Pass) effect()         {}
func (Mark) effect()         {}
func (FindStuck) effect()    {}
func (Waits) effect()        {}
func (Sweep) effect()        {}
func (SetTimer) effect()     {}
func (GoOn) effect()         {}
func (Failing) effect()      {}
func (Ended) effect()        {}
