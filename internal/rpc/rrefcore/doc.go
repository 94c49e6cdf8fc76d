// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rrefcore is the protocol of remote references as one pure machine: no goroutine, no clock, no socket.
//
// A [Machine] is one worker's part: the objects it owns, the references it holds and the control traffic with every
// peer. The driver calls it for everything that happens (an API call, a message, a tick of its clock, a peer that came
// or went) and then takes the effects: frames to send, references that were confirmed or failed, values to free.
// The same code runs behind the rpc agent, in a seeded simulation and in an exhaustive checker.
//
// # Two wires, one machine
//
// With a PyTorch peer ([PyTorch]) the machine speaks PyTorch's protocol: fork request, child accept and user delete are
// single requests that are acknowledged and retried. With a Go peer ([Cohort]) control messages travel on an ordered,
// deduplicated stream, and the protocol is extended so that no object leaks, splits or is freed too early:
//
//	incarnation   ids and frames carry the epoch of their process; messages of an earlier start are refused
//	root          the first message about an unknown object also registers its creator's fork
//	announce      a creation is announced on the stream before the call, confirmed when the call has arrived
//	handoff       a reference put in a message is handed off on the stream; a message that never arrives is withdrawn
//	key           a request for a fork proves that its sender was given the reference
//	cancel        a creation that times out is cancelled, after its own children are safe
//	lease         one lease per pair of workers, renewed by heartbeats; a dead user's forks go after lease and grace
//	refusal       a request about an object that is gone gets a typed answer
//
// # Rules that make it sound
//
// G1: every reference that ends produces a delete for its fork. G2: a reference is not deleted while one of its children
// is unknown to the owner; it is pinned until the child is accepted. The owner frees an object when no fork, no local use
// and no unclaimed hand-off is left.
package rrefcore
