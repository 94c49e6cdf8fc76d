// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storecore is the TCPStore server without its sockets: a machine that takes what connections send and says
// what to send back.
//
// A driver opens a [Conn] for each client, passes the bytes it read to [Machine.Receive], and afterwards looks at
// [Machine.Dirty]: those connections have bytes to send, or are to be closed. The machine has no goroutine, no clock and
// no lock; whoever calls it makes sure that it is called by one goroutine at a time, and begins each turn with the time by
// [Machine.Tick]. A driver of several goroutines has a lock around it and gives each connection a home, which is the goroutine that
// moves its bytes: [Machine.DirtyAt] says what each of them has to do, and what [Conn.Pending] returns may be written without
// the lock. In a turn the machine does a bounded amount of work: while it is [Machine.Busy] the driver calls
// [Machine.Resume], and while it is [Machine.Crowded] it calls [Machine.Admit].
//
// All dialects work on one key space. A request is applied when the last of its bytes is there and then at once, so
// every operation, MULTI_SET and MULTI_GET included, is atomic.
package storecore
