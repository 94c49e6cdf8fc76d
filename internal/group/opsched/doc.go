// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package opsched decides which goroutine of a process group does what: the scheduler of a group as a machine without lock,
// goroutine or clock. Its driver, package group, calls it with the group's mutex held and performs the effects it returns.
//
// # The runner
//
// Collectives run one after another, in the order of submission. The goroutine that runs them holds a role, the runner. A
// goroutine that waits for an operation takes the role if it is free and runs operations, its own and those before it,
// until its own has ended, so no other goroutine has to be woken. The pump, one goroutine per group, runs operations that
// no goroutine waits for. Messages need no runner: they are given to the mesh when they are submitted.
//
// # States
//
// An operation:
//
//	state     meaning                                                       leaves it by
//	Fresh     not submitted                                                 Submit, Post
//	Queued    a collective behind others                                    Start (to Running), Fail, Close (to Ended)
//	Running   the collective that was started; the runner works on it,      Finish (to Ended)
//	          or, after Pause, it waits for the next runner
//	Posted    a message that the mesh has                                   Settle (to Ended), Hold (to Held)
//	Held      a message that is being withdrawn                             LetGo (to Posted)
//	Ended     over; its owner completes it, once                            -
//
// The group:
//
//	state     submissions    queued collectives    the running one                        messages
//	Open      taken          run in order          may be paused                          as the mesh says
//	Failed    refused        ended by Fail         ends by its runner or by the pump      the mesh fails them
//	Closed    refused        ended by Close        ends by its runner or by the closer    settled by the closer
//
// The role of the runner is free or held. It is taken by Wait, Pump and, for a paused operation, by Close; Release and Pause
// give it back. Only its holder calls Start, Pause, Finish and Release.
//
// # Events and effects
//
//	event                  from                                effects
//	Submit, Post           the user                            WakePump or Watch; refused when full or not Open
//	Skip                   an operation that was refused       takes sequence numbers, as PyTorch's own refusal does
//	Wait, Leave            a goroutine that waits              takes the role, or parks (WakePump when none runs)
//	Pump                   the pump, after WakePump            takes the role
//	Start                  the runner                          the next operation
//	Pause                  the runner, whose context ended     as Release, and another runner goes on; after Fail or Close the same one
//	Finish                 the runner, whose operation ended   Room
//	Release                the runner                          WakePump when a goroutine needs the next operation; Gone when closed
//	Settle                 a goroutine that sees it complete   Room; true for exactly one caller
//	Hold, LetGo            who withdraws a message             true for exactly one caller; no other settles it meanwhile
//	Tick                   the clock                           WakePump for what has no runner
//	Fail, Close            a failure, the user                 the queued operations, which their owner completes; Room
//
// A program that waits for each operation right after submitting it needs no pump, and waking the pump costs more than a
// small operation takes. So submissions wake the pump only while the machine is eager. It becomes eager when an operation
// is submitted behind another, or when the clock finds one without a runner, and stops being eager after
// [promptWaits] operations in a row that were waited for at once.
package opsched
