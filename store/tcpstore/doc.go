// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tcpstore is PyTorch's TCPStore: a server and a client that PyTorch cannot tell from its own.
//
// [Listen] starts a [Server], which serves PyTorch 1.13, PyTorch 2.x and Go clients at the same time, on one port and
// with one key space. It corresponds to torch.distributed.TCPStore(host, port, is_master=True), without the client that
// PyTorch puts into the same object. [Dial] connects a [Client] to such a server or to PyTorch's, and corresponds to
// TCPStore(host, port, is_master=False). A Client is a store.Store with every optional operation.
//
//	server, err := tcpstore.Listen(":29500")
//	defer server.Close()
//	client, err := tcpstore.Dial(ctx, "localhost:29500")
//	defer client.Close()
//	err = client.Set(ctx, "ready", []byte("1"))
//
// # Server
//
// The protocol has neither passwords nor encryption. As with PyTorch's server, anyone who can reach the port can read and
// write every key. Bind it to an address that only the job can reach.
//
// A client that is slow, silent, stuck in the middle of a request or hostile does not delay others. [Limits] bound what
// the server holds for its clients. A request over a limit is refused: a Go client gets an error, a PyTorch client is
// disconnected, with the reason in the log ([WithLogger]). [Server.Stats] shows who is connected and who waits for which
// key since when, which is the first thing to look at when a job hangs at its start.
//
// Where PyTorch's own servers differ from each other or misbehave, this one chooses the harmless behaviour: GET of a
// missing key returns an empty value (as the libuv server does; the other one disconnects the client), a compare-and-set
// that creates a key wakes those that wait for it, MULTI_SET is atomic, and a legacy client that gave up a wait and sent
// another request does not get the answer to that wait. docs/wire/tcpstore.md has the bytes and every such decision.
//
// # Client
//
// [Dial] retries until its context or timeout ends, and detects which dialect the server speaks: that of PyTorch 1.13, of
// PyTorch 2.4 and later, or cohort's own ([Client.Dialect]); [WithDialect] selects one. Detection does no harm to any
// server. On cohort's server all calls share one connection, every call is one round trip, and a call whose context ends
// is cancelled on the server. PyTorch's servers send replies without ids; there at most four connections serve calls that
// are answered at once, and up to [WithWaitConns] others serve waits. Further waits poll.
//
// For operations that a server lacks, the fallbacks of package store are used where they exist; store.Supports reports
// which operations are the server's own. [Client.JoinWorker] and [Client.Workers] are PyTorch's count of the workers that
// have joined.
//
// All types are safe for concurrent use.
package tcpstore
