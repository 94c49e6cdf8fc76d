// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package membercore is one member of a replicated store as a pure machine around raft's RawNode. It has no goroutines, clocks, sockets
// or disks: a driver reports events (a tick, a message, a write that is on disk) and carries out the effects that [Machine.Effects]
// returns. The same machine runs on real disks and sockets and in a simulation that loses, delays and repeats everything it can.
//
// Consensus is raft's. What stands here is what raft leaves to its user: which writes have to be on disk before an answer leaves, when
// a read may be served, which proposals were lost with a leader, when a snapshot is due, how members join and leave, and elections that
// begin as soon as the connection of a dead leader breaks.
package membercore
