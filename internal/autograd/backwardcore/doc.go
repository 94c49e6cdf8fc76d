// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package backwardcore is the distributed backward pass as one pure machine: no goroutine, no clock, no socket, no tensors.
//
// A [Machine] is one worker's part: the contexts it has seen, the functions recorded in them, and the running passes. The
// driver tells it what happens (functions recorded, messages, functions that have run, workers that died, time that
// passed) and carries out the effects: messages to send, functions to run, passes that ended. The machine does not know
// what a gradient is; it adds two with the function that it was given.
//
// # A pass
//
// A worker that sends a value in a context records a send function, and the receiver records a receive function with the
// same number. In a backward pass gradients flow the other way: a receive function that has its gradient sends it as
// [Grad] to the worker with the send function, where it continues. A function runs when all functions that it depends on
// have run; which ones these are is computed when a worker enters a pass:
//
//   - [Fast]: from the roots and from every send function of the context, as PyTorch does. A recorded send whose value does
//     not contribute to the loss gets no gradient, and the pass waits for it until the driver ends it: see [Machine.Missing].
//   - [Smart]: from the roots and from the send functions that a first wave of [Mark] messages has reached. It is for Go
//     workers only.
//
// # How a pass ends
//
// Both waves terminate by the algorithm of Dijkstra and Scholten. The sender of the first message of a wave becomes the
// parent of the worker. A message is answered with [Done] when everything it caused is done: the parent's message when
// the worker has nothing left to run and all its own messages are answered, any other at once. So the wave has ended when
// the worker that started it has all answers. A message is repeated until it is answered, and a repetition is answered
// again or ignored, so loss, repetition and order do not matter.
//
// A message to a worker that waits for an answer is sent with that answer. That worker is engaged until then and would
// answer the message at once, and a lost answer is sent again with everything it carried. So a pass that goes back and
// forth between two workers takes one message per step.
//
// When a function fails or a worker dies, [Fail] notifies every worker of the context, and each of them passes it on, so
// that it reaches all. The first failure that a worker learns of is the one that its pass ends with.
//
// # Contexts
//
// A context is known to the worker that opened it and to every worker that has sent or received a message of it.
// [Machine.Release] sends [Cleanup] to them; each passes it on, and all answer it, even if they do not know the context.
// It is repeated until it is answered or the worker is dead. If a worker's neighbour in a context has died, the worker
// tells the one that opened the context that it is still there ([Seen]), because the clean-up may have stopped at the
// dead worker. Cleaned contexts are remembered (the last 65,536, or half as many), so that a late message cannot create
// one again; the contexts of a dead worker are dropped.
//
// # With PyTorch workers
//
// PyTorch's BACKWARD_AUTOGRAD_REQ is a [Grad], and its response is the [Done]: the first one of a context is answered
// when everything is done, the others at once, which gives the same tree. CLEANUP_AUTOGRAD_CONTEXT is a [Cleanup] with
// its response. PyTorch's wire has no pass id, no [Mark] and no [Fail]. So with a PyTorch worker in a context, the driver
// runs one [Fast] pass at a time, under one id, and ends a pass that waits for [Machine.Missing] at its timeout.
//
// A PyTorch worker is not told of a failure, and may send a gradient of the failed pass later. Each gradient that was missing is
// therefore refused once: otherwise it would begin a pass that never ends. The price is that after a failure the next pass of
// another worker in the same context may be refused once.
package backwardcore
