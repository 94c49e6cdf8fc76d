// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// request is one operation of a user, before it is put into a dialect.
type request struct {
	op       wire.Op
	key      string   // of an operation with one key
	keys     []string // of an operation with a list
	raw      bool     // key goes out as it is: it is not a user's
	wait     bool     // the server may keep the answer back until something happens
	num      int64
	value    []byte
	expected []byte
	values   [][]byte
	seq      uint64 // its number in the session, once it was sent with one
	queued   bool   // it is, or was, behind the output of a connection
}

// opName is the operation as errors and events name it.
func (q *request) opName() string { return "tcpstore: " + q.name() }

func (q *request) name() string {
	switch q.op {
	case wire.CompareSet:
		return "compare-and-set"
	case wire.DeleteKey:
		return "delete"
	default:
		return strings.ReplaceAll(q.op.String(), "_", " ")
	}
}

// subject is what errors name: the key, or the first few of many.
func (q *request) subject() string {
	if q.keys == nil {
		return q.key
	}
	return storeop.KeyNames(q.keys)
}

// wireKey is a user's key as it goes out.
func (q *request) wireKey() string {
	if q.raw {
		return q.key
	}
	return wire.KeyPrefix + q.key
}

func (q *request) wireKeys() []string {
	if q.raw {
		return q.keys
	}
	keys := make([]string, len(q.keys))
	for i, k := range q.keys {
		keys[i] = wire.KeyPrefix + k
	}
	return keys
}

// append puts the request behind b.
func (q *request) append(b []byte, d wire.Dialect) []byte {
	switch q.op {
	case wire.Set, wire.Append, wire.QueuePush:
		return wire.AppendKeyValue(b, d, q.op, q.wireKey(), q.value)
	case wire.CompareSet:
		return wire.AppendCompareSet(b, d, q.wireKey(), q.expected, q.value)
	case wire.Add:
		return wire.AppendAdd(b, d, q.wireKey(), q.num)
	case wire.Barrier:
		return wire.AppendBarrier(b, d, q.wireKey(), q.num)
	case wire.Get, wire.DeleteKey, wire.QueueLen, wire.WatchKey:
		return wire.AppendKey(b, d, q.op, q.wireKey())
	case wire.QueuePop:
		if d == wire.Native {
			return wire.AppendQueuePop(b, q.wireKey(), q.wait)
		}
		return wire.AppendKey(b, d, q.op, q.wireKey())
	case wire.Check, wire.Wait, wire.MultiGet:
		return wire.AppendKeys(b, d, q.op, q.wireKeys()...)
	case wire.MultiSet:
		return wire.AppendMultiSet(b, d, q.wireKeys(), q.values)
	case wire.Hello:
		return wire.AppendHello(b, q.expected)
	case wire.Backup:
		return wire.AppendBackup(b, q.num == 1)
	case wire.Clear:
		return wire.AppendClear(b, q.expected)
	default: // num_keys, list_keys, stats
		return wire.AppendPlain(b, d, q.op)
	}
}

// check refuses what the server would cut the connection for.
func (q *request) check(limits *wire.Limits) error {
	tooLarge := func(what string, n, limit int) error {
		e := cohort.Newf(q.opName(), cohort.TooLarge, "%s of %d is over the limit of %d: store less, split it, or raise the limit "+
			"here (WithMaxSizes) and at the server", what, n, limit)
		if len(q.key) <= 256 {
			e.Key = q.key
		}
		return e
	}
	if len(q.keys) > limits.Keys {
		return tooLarge("a number of keys", len(q.keys), limits.Keys)
	}
	longest, largest, total := len(q.key), max(len(q.value), len(q.expected)), len(q.key)+len(q.value)+len(q.expected)
	for _, k := range q.keys {
		longest = max(longest, len(k))
		total += len(k) + 9
	}
	for _, v := range q.values {
		largest = max(largest, len(v))
		total += len(v) + 8
	}
	switch {
	case longest+len(wire.KeyPrefix) > limits.Key:
		return tooLarge("a key with its prefix", longest+len(wire.KeyPrefix), limits.Key)
	case largest > limits.Value:
		return tooLarge("a value", largest, limits.Value)
	case total > limits.Request:
		return tooLarge("a request", total, limits.Request)
	}
	return nil
}
