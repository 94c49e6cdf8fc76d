// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tcpstore is PyTorch's TCPStore: a server and a client that PyTorch cannot tell from its own.
//
// [Listen] starts a [Server]. On one port and one key space it serves PyTorch 1.13, PyTorch 2.x and Go clients at the
// same time; it corresponds to torch.distributed.TCPStore(host, port, is_master=True), without the client that PyTorch
// puts into the same object. [Dial] opens a [Client], TCPStore(host, port, is_master=False), on such a server or on
// PyTorch's; it is a store.Store with every optional operation.
//
//	server, err := tcpstore.Listen(":29500")
//	defer server.Close()
//	client, err := tcpstore.Dial(ctx, "localhost:29500")
//	defer client.Close()
//	err = client.Set(ctx, "ready", []byte("1"))
//
// # Server
//
// The protocol knows neither passwords nor encryption: whoever reaches the port can read and write every key, as with
// PyTorch's server. Bind it to an address that only the job can reach.
//
// A client that is slow, silent, stuck in the middle of a request or hostile delays nobody. [Limits] bound what clients
// can make the server hold; over a limit that client is cut, with a reason in the log ([WithLogger]). [Server.Stats]
// tells who is connected and who waits for which key since when, the first thing to know when a job hangs at its start.
//
// Where PyTorch's own servers differ from each other or misbehave, this one does what costs nobody anything: GET of a
// missing key answers an empty value (the libuv server's answer; the other one cuts the client), a compare-and-set
// that creates a key wakes who waits for it, MULTI_SET is atomic, and a legacy client that gave up a wait and went on
// is not sent the answer to that wait. docs/wire/tcpstore.md has the bytes and every such decision.
//
// # Client
//
// [Dial] tries until its context or timeout ends, and finds out which dialect the server speaks: that of PyTorch 1.13, of
// PyTorch 2.4 and later, or cohort's own ([Client.Dialect]); [WithDialect] fixes it. The greeting is chosen so that no
// server takes harm from it. On cohort's server all calls share one connection, every call is one round trip, and a call
// whose context ends is taken back. On PyTorch's servers, whose replies carry no ids, at most four connections serve
// calls that are answered at once and [WithWaitConns] others serve waits; waits beyond those poll.
//
// What a server lacks is done by the fallbacks of package store where they exist; store.Supports tells which are the
// server's own. [Client.JoinWorker] and [Client.Workers] are PyTorch's count of the workers that have joined.
//
// All methods of all types are safe for concurrent use.
package tcpstore
