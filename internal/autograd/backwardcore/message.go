// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

// Worker is the id of a worker.
type Worker int16

// Context is the id of a context. The worker that opened it is part of it, as in PyTorch's ids.
type Context struct {
	Origin Worker
	N      uint64
}

// PassID is the id of a pass: the worker that began it and its counter.
type PassID struct {
	Origin Worker
	N      uint64
}

// Call is the number of a message with values, which its send and its receive function share.
type Call struct {
	From Worker
	N    uint64
}

// Node is a function of a context at one worker.
type Node int

// Mode is how a pass finds out what it has to wait for.
type Mode uint8

// The modes.
const (
	Fast    Mode = iota // every recorded send gets a gradient
	Smart               // a first wave finds those that do
	Foreign             // Fast, with PyTorch workers: one pass at a time in a context, which has no id
)

// NoID is the id of every pass in [Foreign] mode.
var NoID = PassID{Origin: -1}

// Kind is the kind of a message.
type Kind uint8

// The messages.
const (
	Mark         Kind = 1 + iota // the gradient of Call will come
	Grad                         // the gradient of Call
	Done                         // the Mark (of the first wave) or Grad of Call is done, with all that it has brought about
	Fail                         // the pass has failed
	FailReceived                 // Fail has arrived
	Cleanup                      // the context is over
	Cleaned                      // Cleanup has arrived
	Seen                         // to the opener of the context: this worker has seen it, and the worker that it has it from is dead
	Noted                        // Seen has arrived
)

// Cause says why a pass failed.
type Cause struct {
	Worker   Worker // where it failed, or who died
	Node     Node   // the function that failed; zero when a worker died or a message came for nothing that is known
	Function string // its name, for the driver
	Code     int    // of the driver's errors; zero for causes of the machine but Options.Cleaned, except that Died says more
	Died     bool
	Text     string
}

// Message goes from one worker to another. Unused fields are zero.
type Message[G any] struct {
	Kind     Kind
	From, To Worker
	Context  Context
	Pass     PassID
	Mode     Mode
	Wave     Kind // of a Done: Mark or Grad
	Call     Call
	Gradient G
	Carried  []Carried[G] // of a Done: messages of the wave to the same worker, which need no answer
	Cause    Cause
}

// Carried is a Mark or Grad that travels with an answer.
type Carried[G any] struct {
	Call     Call
	Gradient G
}

// effectKind is what the driver has to do.
type effectKind uint8

// The effects.
const (
	Send  effectKind = 1 + iota // send Msg; it may be lost, late or repeated
	Enter                       // Nodes of Context will be run in Pass, each once
	Run                         // run Node of Context in Pass with Gradient, then call Ran
	Ended                       // the pass that this worker began has ended; Failed and Cause say how
	Left                        // this worker has nothing more to do in a pass that another one began, or it has failed
	Freed                       // the context is gone: drop its functions and gradients
)

// Effect is one thing that the driver has to do.
type Effect[G any] struct {
	Kind     effectKind
	Msg      Message[G]
	Context  Context
	Pass     PassID
	Node     Node
	Nodes    []Node
	Gradient G
	Failed   bool
	Cause    Cause
}
