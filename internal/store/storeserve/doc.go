// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storeserve serves a storecore.Machine on a listener: it moves bytes between sockets and the machine, tells it the
// time, and carries out what it decides.
//
// There are two drivers. Event loops serve TCP on Linux: a few goroutines, each with sockets of its own. Everything else,
// other systems and listeners that are no sockets, is served by two goroutines for each connection. Both hold one lock
// while they use the machine, and never during a system call.
//
// Package store/tcpstore is the public side of it.
package storeserve
