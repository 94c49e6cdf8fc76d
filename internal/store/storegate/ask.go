// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/ilist"
)

// ask is one request to the store, for one or several clients.
type ask struct {
	kind    kind
	op      wire.Op
	body    []byte // code and arguments
	key     string // of its table; empty: it cannot be shared
	shares  []share
	size    int64  // of a barrier
	count   uint32 // how many have arrived there, also those that do not want the answer any more
	next    *ask   // what came while this one was under way, and goes out after it
	id      uint32
	seq     uint64 // its number in the session, once it has one
	sub     uint32
	state   state
	cost    int64
	ofSent  ilist.Place[ask] // in the order in which they were sent
	ofQuick ilist.Place[ask] // numbered ones whose answer is acknowledged with those before it
	keys    []string         // of a batch of sets
	values  [][]byte
}

// share is a client's part of an ask.
type share struct {
	ticket *storecore.Ticket
	delta  int64 // of an addition
}

type kind uint8

const (
	plain   kind = iota // one client's request
	reading             // equal requests that change nothing
	adding              // additions to one counter
	sets                // writes
	arrival             // arrivals at one barrier
)

type state uint8

const (
	queued state = iota
	sent
	unwanted // sent, and its clients do not want the answer any more
	over
)

// numbered reports whether an ask changes something.
func (a *ask) numbered() bool { return a.kind != reading }

// lasting reports whether the answer may come much later, and is acknowledged for itself.
func (a *ask) lasting() bool {
	return a.kind == arrival || a.op == wire.Barrier || a.op == wire.QueuePop && a.body[len(a.body)-1] == 1
}

const (
	// askCost is what an ask takes beside its bytes, and shareCost each of its clients.
	askCost, shareCost = 256, 48
	// maxShared is the longest request that is compared with others.
	maxShared = 4 << 10
	// maxBatch bounds the writes, and their bytes, that go out as one, and maxBatchValue each of them.
	maxBatch, maxBatchBytes, maxBatchValue = 256, 64 << 10, 4 << 10
)

// encode writes the request of an ask that is made when it is sent.
func (a *ask) encode() {
	switch {
	case a.kind == adding:
		var sum int64
		for _, s := range a.shares {
			sum += s.delta // wraps, as in the store
		}
		a.body = wire.AppendAdd(nil, wire.Native, a.key, sum)
	case a.kind == arrival:
		a.body = wire.AppendArrive(nil, a.key[:len(a.key)-8], a.size, a.count)
	case a.kind == sets && len(a.keys) == 1:
		a.body = wire.AppendSet(nil, wire.Native, a.keys[0], a.values[0])
	case a.kind == sets:
		a.body = wire.AppendMultiSet(nil, wire.Native, a.keys, a.values)
	}
	a.keys, a.values = nil, nil
}

// forClient is what a client of PyTorch is asked for in the native dialect, where get and wait mean something else.
func forClient(d wire.Dialect, r *wire.Request) (op wire.Op) {
	switch {
	case d == wire.Native:
		return r.Op
	case r.Op == wire.Get:
		r.List = wire.NewList(r.Key)
		return wire.Peek
	case r.Op == wire.MultiGet:
		return wire.Peek
	case r.Op == wire.Wait:
		return wire.Await
	}
	return r.Op
}

// kindOf is how requests of an operation are put together.
func kindOf(op wire.Op) kind {
	switch op { //nolint:exhaustive // all others stand alone
	case wire.Get, wire.MultiGet, wire.Peek, wire.Check, wire.Wait, wire.Await, wire.NumKeys, wire.QueueLen, wire.ListKeys:
		return reading
	case wire.Add:
		return adding
	case wire.Set:
		return sets
	case wire.Barrier:
		return arrival
	}
	return plain
}
