// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc makes a Go process a worker of a torch.distributed.rpc world: it calls functions of other workers by name,
// serves its own, and holds references to objects that live elsewhere. The other workers may be PyTorch processes with
// their default options, or Go processes.
//
// # Joining
//
// [Join] enters a world through a store. With [WithWorldSize] the world is static: all workers start and stop together.
// Without, it is dynamic: workers come and go. [Agent.Shutdown] leaves in order, [Agent.Close] at once.
//
// # Calling and serving
//
//	sum, err := rpc.Call[float64](ctx, agent, "trainer1", "stats.mean", xs)     // def mean(xs) in stats.py, or a Go handler
//	future := rpc.Async[float64](ctx, agent, "trainer1", "stats.mean", xs)
//	ref, err := rpc.Remote[Model](ctx, agent, "ps", "ps.build", cfg)            // the result stays there
//
// A name is "module.function"; a method or nested name has a colon behind the module: "package.module:Class.method".
// A name that starts with "__torch__." is a TorchScript function, one with a schema such as
// "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor" a builtin operator, which a Go worker serves if it was told
// to, see [WithOperators]; "torch.mul" is the Python function of a PyTorch worker. Keyword arguments are a [Kw] at the end. Handlers are
// functions in a [Registry].
//
// Python values become Go values and back; see package rpc/py. Go structs are dicts, by the tag `rpc:"name"` or the field's
// name in snake case.
//
// # References
//
// A [Ref] stands for an object of another worker. It may be put into arguments and results; the receiver gets a
// reference of its own. The owner keeps the object until every reference was closed or found unreachable, or its holder
// died. Towards PyTorch the protocol is PyTorch's; among Go workers it is extended so that nothing leaks, splits or
// dangles when messages are late, lost or repeated and workers crash.
//
// # Failure
//
// Errors are *[dist.Error]: the operation, the function or object, the worker, the code. Where the function failed its cause is
// a *[RemoteError], with the class and the stack; where a reference cannot be used its cause is a [Reason].
// [errors.Is] asks for the code: [dist.DeadlineExceeded], [dist.Canceled], [dist.PeerLost], [dist.NotFound]
// (no such worker or function), [dist.InvalidArgument] (the arguments do not fit), [dist.Mismatch] (the result does not fit
// the type that was asked for), [dist.Remote] (it happened at the other worker). Nothing waits for ever: without a deadline in its context a call has the agent's timeout, 60 seconds unless
// set. Among Go workers the deadline travels: the callee's context ends with the caller's.
//
// There is no authentication on PyTorch's wire, and a PyTorch worker runs what its peers ask for. Use it on networks that
// only the job can reach. A Go worker runs only its handlers; pickles are read as data.
package rpc
