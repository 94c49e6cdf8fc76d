// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package worldcore has the decisions of an RPC worker about its world as pure machines: events in, operations out, no clock,
// store or goroutine. Package rpcworld drives them.
//
// [Start] and [Naming] are how the workers of a static world come together, [Join] and [Leave] how a worker comes to a dynamic
// world and goes. [Gather] is one all-gather among workers, [Gathers] what a worker knows of all of them. [Watch] looks after the
// workers that another waits for. [Ending] is the orderly end of a static world. All of it is PyTorch's, on PyTorch's keys and
// messages, so that its workers take part; what Go workers add are keys under "cohort/" that tell each other who lives.
//
// Each machine says what it wants as operations ([Op]) and takes the answers ([Event]) in any order. Its options
// turn single rules off, so that the simulations can show that each rule is needed.
package worldcore
