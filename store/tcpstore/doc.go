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
// All methods of all types are safe for concurrent use.
package tcpstore
