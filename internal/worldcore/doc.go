// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package worldcore has the decisions of an RPC worker about its world as pure machines: events in, actions out, no clock,
// store or goroutine. Package rpcworld drives them.
//
// [Ending] is the orderly end of a static world. It is PyTorch's: barriers in the store, each with a counter of who has come
// and a sum of the calls under way.
package worldcore
