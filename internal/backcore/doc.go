// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package backcore is the distributed backward pass as one pure machine: no goroutine, no clock, no socket, no tensors.
//
// A [Machine] is one worker's part: the contexts it has seen, the functions that were recorded in them, and the passes under
// way. The driver tells it what happens (functions recorded, messages, functions that have run, workers that died, time that
// passed) and performs the effects: messages to send, functions to run, passes that ended. What a gradient is, is the
// driver's business; the machine adds two with the function that it was given.
//
// # A pass
//
// A worker that sends a value in a context records a send function, the receiver a receive function under the same number. In
// a pass gradients run the other way: a receive function that has its gradient sends it as [Grad] to the worker with the send
// function, where it goes on. A function runs when all functions before it have run; which ones these are is computed when
// a worker enters a pass:
//
//   - [Fast]: from the roots and from every send function of the context, as PyTorch does. A recorded send whose value does
//     not enter the loss gets no gradient, and the pass waits for it until somebody ends it: see [Machine.Missing].
//   - [Smart]: from the roots and from the send functions that a first wave of [Mark] messages has reached. It is for Go
//     workers only.
//
// # How it ends
//
// Both waves end as Dijkstra and Scholten have it. The first message of a wave makes its sender the parent of the worker; a
// message is answered by [Done] when all that it has brought about is done: the one of the parent when the worker has nothing
// left to run and all its own messages are answered, any other at once. So the wave is over when the worker that began it
// has all answers. A message is repeated until it is answered, and a repetition is answered again or ignored: neither loss
// nor repetition nor order matters.
//
// A message to the worker that waits for an answer goes with that answer: that worker is engaged until then and would answer it at
// once, and a lost answer comes again with all that it carried. So a pass that goes back and forth between two workers takes one
// message per step.
//
// A failure of a function, or the death of a worker, is told by [Fail] to every worker of the context, by each of them again,
// so that it reaches all; the first one that a worker hears of is what its pass ended with.
//
// # Contexts
//
// A context is known to whoever opened it and to everybody a message of it has been sent to or received from. [Machine.Release]
// sends [Cleanup] to them, each passes it on, and everybody answers it, also who does not know the context. It is repeated
// until it is answered or the worker is dead. A worker whose neighbour in a context has died tells who opened it that it is
// there ([Seen]): the clean-up may have ended with the dead. A cleaned context is remembered as such (the last 65,536, or half as many), so
// that a late message cannot make it again; the contexts of a worker that died go with it.
//
// # Towards PyTorch
//
// PyTorch's BACKWARD_AUTOGRAD_REQ is a [Grad] and its response the [Done]: the first one of a context is answered when all is
// done, the others at once, which is the same tree. Its wire has no pass id, no [Mark] and no [Fail], and CLEANUP_AUTOGRAD_CONTEXT
// is a [Cleanup] with its response. So a driver that has a PyTorch worker in a context runs one [Fast] pass at a time in it, under
// one id, and ends one that waits for [Machine.Missing] at its timeout.
package backcore
