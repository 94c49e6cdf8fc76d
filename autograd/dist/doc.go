// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package dist carries gradients across workers: a loss is computed by calls to other workers, and one pass back finds the
// gradients of all parameters, each at the worker that has it. It corresponds to torch.distributed.autograd, and works together
// with it: chains of calls may run through Go and PyTorch workers in any order.
//
//	engine := dist.New()
//	agent, err := rpc.Join(ctx, st, "trainer", engine.Join())
//
//	gctx, c, err := engine.Open(ctx)                 // with dist_autograd.context() as context_id
//	defer c.Close()
//	y, err := rpc.Call[*autograd.Variable](gctx, agent, "ps", "ps.forward", x)
//	loss := autograd.MSE(y, target, autograd.ReduceMean)
//	err = c.Backward(gctx, []*autograd.Variable{loss})
//	grads, err := c.Gradients()                      // of this worker's leaves
//
// Handlers take and return *[autograd.Variable]. One that is called in a context finds it with [From]; calls that it makes with
// its ctx belong to the context, too. Values that are sent outside of a context arrive as leaves.
//
// # Passes
//
// Among Go workers a pass first finds out which of the recorded messages it needs (PyTorch has planned that as SMART mode), then
// gradients flow. So a value that was sent but does not enter the loss does no harm. [Fast] leaves the first part out. With a
// PyTorch worker in the world every pass is FAST, as PyTorch's own, and there is one at a time in a context.
//
// A function that fails, or a worker that dies, ends the pass at all Go workers; the error is a *dist.Error that names the worker
// (Peer) and the function (Key). PyTorch's wire has no message for that: its workers learn it with the answer that they wait
// for, or by their timeout.
//
// # Contexts
//
// Each worker that a message of a context has reached holds its part of the graph and the gradients of its leaves. [Context.Close]
// frees all of them, also those reached only through others. A worker that the clean-up has not reached asks whoever opened the
// context, after a lease; the contexts of a dead worker are freed. A message that comes after the clean-up is refused.
//
//	PyTorch                                   here
//	dist_autograd.context()                   Engine.Open, Context.Close
//	dist_autograd.backward(id, roots)         Context.Backward
//	dist_autograd.get_gradients(id)           Context.Gradients, Context.Gradient
//	rref.backward(id)                         Context.BackwardRef
//	_get_debug_info                           Engine.Stats
//	DistributedOptimizer                      package optim/remote
package dist
