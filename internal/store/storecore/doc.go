// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storecore is the TCPStore server without its sockets: a state machine that takes what connections send and
// returns what to send back.
//
// A driver opens a [Conn] for each client, passes the bytes it read to [Machine.Receive], and then looks at
// [Machine.Dirty]: those connections have bytes to send or must be closed. The machine has no goroutine, no clock and no
// lock. The driver calls it from one goroutine at a time, and begins each turn with [Machine.Tick], which sets the time.
// A driver with several goroutines holds a lock around it and gives each connection a loop, the goroutine that moves its
// bytes: [Machine.DirtyAt] says what each of them has to do, and what [Conn.Pending] returns may be written without the
// lock. In a turn the machine does a bounded amount of work: while it is [Machine.Busy] the driver calls
// [Machine.Resume], and while it is [Machine.Crowded] it calls [Machine.Admit].
//
// All dialects share one key space. A request is applied in one step when its last byte has arrived, so every operation,
// including MULTI_SET and MULTI_GET, is atomic.
package storecore
