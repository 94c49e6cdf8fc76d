// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc makes a Go process a worker of a torch.distributed.rpc world: it calls functions of other workers by name,
// serves its own, and holds references to objects on other workers. The other workers may be PyTorch processes with their
// default options, or Go processes.
//
// # Joining
//
// [Join] enters a world through a store. With [WithWorldSize] the world is static: all workers start and stop together.
// Without it, the world is dynamic: workers come and go. [Agent.Shutdown] leaves in order, [Agent.Close] leaves at once.
//
// # Calling and serving
//
//	sum, err := rpc.Call[float64](ctx, agent, "trainer1", "stats.mean", xs)     // def mean(xs) in stats.py, or a Go handler
//	future := rpc.Async[float64](ctx, agent, "trainer1", "stats.mean", xs)
//	ref, err := rpc.Remote[Model](ctx, agent, "ps", "ps.build", cfg)            // the result stays there
//
// The name of a function is "module.function"; a method or nested name has a colon after the module:
// "package.module:Class.method". A name that starts with "__torch__." is a TorchScript function. A name with a schema,
// such as "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", is a builtin operator, which a Go worker serves only
// with [WithOperators]; "torch.mul" is the Python function of a PyTorch worker. Keyword arguments are passed as a [Kw],
// which comes last. Handlers are functions in a [Registry].
//
// Python values are converted to Go values and back; see package rpc/py. Go structs become dicts, with keys from the tag
// `rpc:"name"` or the field's name in snake case.
//
// # References
//
// A [Ref] refers to an object on another worker, its owner. It may be passed in arguments and results; the receiver gets
// its own reference. The owner keeps the object until every reference has been closed or garbage collected, or its holder
// has died. With PyTorch workers the protocol is PyTorch's. Among Go workers it is extended so that no object leaks or is
// freed too early when messages are late, lost or repeated, or when workers crash.
//
// # Failure
//
// Errors are *[cohort.Error], with the operation, the function or object, the worker and the code. If the called function
// failed, the cause is a *[RemoteError], with the class and the stack; if a reference cannot be used, the cause is a
// [Reason]. Use [errors.Is] to test for a code: [cohort.DeadlineExceeded], [cohort.Canceled], [cohort.PeerLost],
// [cohort.NotFound] (no such worker or function), [cohort.InvalidArgument] (the arguments do not fit), [cohort.Mismatch] (the
// result does not fit the requested type), [cohort.Remote] (the function itself failed).
//
// Nothing waits for ever: if its context has no deadline, a call ends after the agent's timeout, 60 seconds by default.
// Among Go workers the deadline travels with the call: the callee's context ends with the caller's.
//
// PyTorch's wire has no authentication, and a PyTorch worker runs whatever its peers ask for. Use it only on networks
// that only the job can reach. A Go worker runs only its handlers, and reads pickles as data.
package rpc
