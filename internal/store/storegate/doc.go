// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storegate is a gateway to a store: clients of every dialect connect to it on their own host, and it asks the store for all of
// them over one connection. That connection may break, and the store's host may change: the clients keep theirs, and what they have under
// way goes on, exactly once, in the session that the gateway has with the store (docs/wire/tcpstore.md).
//
// gate is the pure part. It is the relay of a storecore.Machine, which does for the clients what it does in any server. [Gateway] moves
// the bytes.
//
// What clients of one gateway want at the same time is asked for once. All of this is linearizable, because an answer is given to those
// only that asked before the request was sent:
//
//   - equal reads and waits are one request; those that come while it is under way are the next one;
//   - so are additions to one counter, whose sum is dealt out, and arrivals at one barrier;
//   - writes without a reply that follow each other are one MULTI_SET.
//
// Nothing is remembered of an answer once it is given.
package storegate
