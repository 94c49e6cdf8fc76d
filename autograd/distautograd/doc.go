// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package distautograd computes gradients across workers: a loss is computed by calls to other workers, and one backward pass
// computes the gradients of all parameters, each on the worker that has the parameter. It corresponds to
// torch.distributed.autograd and interoperates with it: chains of calls may run through Go and PyTorch workers in any
// order.
//
//	engine := distautograd.New()
//	agent, err := rpc.Join(ctx, st, "trainer", engine.Join())
//
//	gctx, c, err := engine.Open(ctx)                 // with dist_autograd.context() as context_id
//	defer c.Close()
//	y, err := rpc.Call[*autograd.Variable](gctx, agent, "ps", "ps.forward", x)
//	loss := autograd.MSE(y, target, autograd.ReduceMean)
//	err = c.Backward(gctx, []*autograd.Variable{loss})
//	grads, err := c.Gradients()                      // of this worker's leaves
//
// Handlers take and return *[autograd.Variable]. A handler that is called within a context gets it with [From]; calls
// that it makes with its ctx belong to the context too. Values that are sent outside of a context arrive as leaves.
//
// # Passes
//
// Among Go workers a pass first finds out which of the recorded messages it needs (what PyTorch plans as SMART mode), and
// then sends gradients. So a value that was sent but does not contribute to the loss does no harm. [Fast] skips the first
// part. With a PyTorch worker in the world every pass is FAST, as in PyTorch, and a context can have only one pass at a
// time.
//
// If a function fails or a worker dies, the pass ends on all Go workers, with a *cohort.Error that names the worker (Peer)
// and the function (Key). PyTorch's wire has no message for that: its workers learn of it from the answer they wait for,
// or by their timeout.
//
// # Contexts
//
// Each worker that a message of a context has reached holds its part of the graph and the gradients of its leaves.
// [Context.Close] frees them on all workers, including those reached only through others. After a lease, a worker that
// the clean-up has not reached asks the worker that opened the context; the contexts of a dead worker are freed. A
// message that arrives after the clean-up is refused.
//
//	PyTorch                                   here
//	dist_autograd.context()                   Engine.Open, Context.Close
//	dist_autograd.backward(id, roots)         Context.Backward
//	dist_autograd.get_gradients(id)           Context.Gradients, Context.Gradient
//	rref.backward(id)                         Context.BackwardRef
//	_get_debug_info                           Engine.Stats
//	DistributedOptimizer                      package optim/remote
package distautograd
