// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensorpipe speaks TensorPipe, the transport under torch.distributed.rpc, with unmodified PyTorch workers on
// their default options: the uv transport and the basic and mpt_uv channels. Among Go workers it negotiates the faster
// cohort transport (package cohortwire) through the same handshake.
//
// # For the author of an agent
//
// One [Endpoint] per agent. [Listen] opens the port whose "uv://host:port" is published under addrs/<name>;
// [Endpoint.Accept] returns what other workers open, [Endpoint.Connect] the session with a worker:
//
//	ep, err := tensorpipe.Listen(name, "127.0.0.1:0", tensorpipe.WithCohort(cfg), tensorpipe.WithAlloc(pool.Get))
//	session, err := ep.Connect(ctx, "trainer1", "uv://10.0.0.5:4711")
//
// A [Session] has either a Pipe (a PyTorch worker, or a Go one without the cohort transport) or a Link (a Go worker).
//
//   - A pipe carries requests of the side that opened it and their answers. The agent runs one goroutine that calls
//     [Pipe.Recv] on every pipe, accepted ones to serve and connected ones for answers; any goroutine may call
//     [Pipe.Send]. Messages are made by rpcwire.Message.Encode and read by rpcwire.Decode.
//   - A link carries both directions. Its frames arrive at the config's OnFrame in order; Link.Send sends one. Messages are
//     made by rpcwire.Message.Frame and read by rpcwire.DecodeFrame. An arriving link is returned by Accept once,
//     for the record; it serves from the moment it exists.
//
// Every request that Recv returned must be answered exactly once, with an EXCEPTION if nothing else: PyTorch waits for
// the answer, and aborts on a second one (which Send refuses). The agent chooses the ids of requests: a counter per pipe
// or agent, never reused while open.
//
// PyTorch never reopens the pipe it has for a worker id. So nothing that a single call does (its context, its size)
// breaks a pipe; only a peer that accepts no data for the stall limit does.
//
// # The parts
//
// codec.go has the frames of handshake and descriptors; handshake.go the two pure state machines [offerer] and [chooser];
// channel.go has the model of the messages that PyTorch accepts and moves them, with pipe.go and stream.go; endpoint.go, dial.go,
// pipesetup.go, connect.go and peers.go set up sessions; stream.go also notices the end of connections that are not read.
// docs/wire/tensorpipe.md has the bytes.
package tensorpipe
