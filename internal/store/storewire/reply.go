// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
)

// Reply is the answer to one request. Its slices are views into the buffer it was parsed from.
type Reply struct {
	Byte  byte   // CHECK, WAIT, BARRIER, CANCEL_WAIT, WATCH_KEY
	Nonce uint32 // PING
	// Num is the reply to ADD, NUM_KEYS, DELETE_KEY, QUEUE_LEN; of QUEUE_POP the length before the pop, of LIST_KEYS the count, of HELLO
	// and CLEAR keys, of SESSION the last number, of BACKUP 1 if more follows.
	Num    int64
	Value  []byte   // GET, COMPARE_SET; QUEUE_POP: the item when Num > 0; HELLO, CLEAR: the identity
	Values [][]byte // MULTI_GET: values; LIST_KEYS: raw keys
}

// HasReply reports whether a request is answered at all. In the Native dialect everything is, but CANCEL_WAIT.
func HasReply(d Dialect, op Op) bool {
	switch op {
	case Validate, Upgrade:
		return false
	case Set, Append, MultiSet, QueuePush:
		return d == Native
	case CancelWait:
		return d != Native
	case Leave, Acked:
		return false
	default:
		return true
	}
}

// ParseReply reads the reply to an op from the start of b; keys is the number of keys that a MULTI_GET asked for. It
// returns the number of bytes the reply takes, or 0 and short true when b does not hold all of it yet.
//
// In the Native dialect b is a successful reply's body (what follows the status) and must be used up by it.
func ParseReply(d Dialect, op Op, keys int, b []byte, limits *Limits) (r Reply, n int, short bool, err error) {
	switch op {
	case Set, Append, MultiSet, QueuePush, Validate, Upgrade:
		return r, 0, false, nil // the acknowledgement of a native write has no body, and the others are not answered
	case Check, Wait, Barrier, CancelWait, WatchKey, Await, Arrive:
		if !HasReply(d, op) {
			return r, 0, false, nil
		}
		if len(b) < 1 {
			return r, 0, true, nil
		}
		r.Byte = b[0]
		return r, 1, false, nil
	case Ping:
		if len(b) < 4 {
			return r, 0, true, nil
		}
		r.Nonce = binary.LittleEndian.Uint32(b)
		return r, 4, false, nil
	case Add, NumKeys, DeleteKey, QueueLen:
		r.Num, n, short = intAt(b, 0)
		return r, n, short, nil
	case Get, CompareSet:
		r.Value, n, short, err = replyString(b, 0, "value", limits.Value)
		return r, n, short, err
	case QueuePop:
		r.Num, n, short = intAt(b, 0)
		if short || r.Num <= 0 {
			return r, n, short, nil
		}
		r.Value, n, short, err = replyString(b, n, "value", limits.Value)
		return r, n, short, err
	case Session:
		if len(b) < 16 {
			return r, 0, true, nil
		}
		r.Num = int64(binary.LittleEndian.Uint64(b)) //nolint:gosec // two's complement, as on the wire
		return r, 16, false, nil
	case MultiGet, Peek:
		r.Values, n, short, err = replyStrings(b, 0, keys, "value", limits.Value)
		return r, n, short, err
	case ListKeys:
		r.Num, n, short = intAt(b, 0)
		if short {
			return r, 0, true, nil
		}
		if r.Num < 0 || r.Num > int64(limits.Request)/8 {
			return r, 0, false, cohort.Newf("tcpstore: decode", cohort.TooLarge, "list_keys: reply with %d keys", r.Num)
		}
		r.Values, n, short, err = replyStrings(b, n, int(r.Num), "key", limits.Value)
		return r, n, short, err
	case Hello, Clear:
		if r.Value, n, short, err = replyString(b, 0, "value", limits.Value); short || err != nil {
			return r, 0, short, err
		}
		r.Num, n, short = intAt(b, n)
		return r, n, short, nil
	case Backup:
		if r.Value, n, short, err = replyString(b, 0, "part", limits.Request); short || err != nil {
			return r, 0, short, err
		}
		r.Num, n, short = intAt(b, n)
		return r, n, short, nil
	case Stats:
		r.Value = b
		return r, len(b), false, nil
	default:
		return r, 0, false, nil // the acknowledgement of a native write has no body
	}
}

func intAt(b []byte, at int) (v int64, end int, short bool) {
	if len(b)-at < 8 {
		return 0, 0, true
	}
	return int64(binary.LittleEndian.Uint64(b[at:])), at + 8, false //nolint:gosec // two's complement, as on the wire
}

func replyString(b []byte, at int, what string, limit int) (s []byte, end int, short bool, err error) {
	if len(b)-at < 8 {
		return nil, 0, true, nil
	}
	n := binary.LittleEndian.Uint64(b[at:])
	if n > uint64(limit) { //nolint:gosec // a limit is not negative
		return nil, 0, false, cohort.Newf("tcpstore: decode", cohort.TooLarge, "reply with a %s of %d bytes, over the limit of %d",
			what, n, limit)
	}
	at += 8
	if uint64(len(b)-at) < n { //nolint:gosec // not negative
		return nil, 0, true, nil
	}
	end = at + int(n) //nolint:gosec // at most the limit
	return b[at:end:end], end, false, nil
}

func replyStrings(b []byte, at, count int, what string, limit int) (list [][]byte, end int, short bool, err error) {
	if (len(b)-at)/8 < count { // each takes eight bytes at least: no memory for what is not there
		// A length that is over the limit is reported before the rest is waited for.
		count = (len(b) - at) / 8
		short = true
	}
	list = make([][]byte, 0, count)
	for range count {
		s, next, more, err := replyString(b, at, what, limit)
		if more || err != nil {
			return nil, 0, more, err
		}
		list, at = append(list, s), next
	}
	if short {
		return nil, 0, true, nil
	}
	return list, at, false, nil
}

// ReplySize returns how many bytes of the reply to an op are certain from what b holds: a reader that has fewer need not
// parse again. It is a lower bound, and never more than the limits allow.
func ReplySize(op Op, b []byte) int {
	switch op {
	case Check, Wait, Barrier, CancelWait, WatchKey, Await, Arrive:
		return 1
	case Ping:
		return 4
	case Get, CompareSet:
		if len(b) >= 8 && binary.LittleEndian.Uint64(b) < 1<<40 {
			return 8 + int(binary.LittleEndian.Uint64(b)) //nolint:gosec // just bounded
		}
	case QueuePop:
		//nolint:gosec // signed on the wire
		if len(b) >= 16 && int64(binary.LittleEndian.Uint64(b)) > 0 && binary.LittleEndian.Uint64(b[8:]) < 1<<40 {
			return 16 + int(binary.LittleEndian.Uint64(b[8:])) //nolint:gosec // just bounded
		}
	default:
	}
	return 8
}

// WatchEvent is what a WATCH_KEY connection is sent, unasked, for each change.
type WatchEvent struct {
	Kind     byte
	Key      []byte
	Old, New []byte
}

// AppendWatchEvent writes a callback.
func AppendWatchEvent(b []byte, e WatchEvent) []byte {
	b = AppendBytes(append(b, e.Kind), e.Key)
	return AppendBytes(AppendBytes(b, e.Old), e.New)
}

// ParseWatchEvent reads the callback at the start of b; short is true when b does not hold all of it yet.
func ParseWatchEvent(b []byte, limits *Limits) (e WatchEvent, n int, short bool, err error) {
	if len(b) < 1 {
		return e, 0, true, nil
	}
	e.Kind = b[0]
	switch e.Kind {
	case KeyUpdated, KeyCreated, KeyDeleted, KeyAppended:
	default:
		return e, 0, false, cohort.Newf("tcpstore: decode", cohort.Protocol, "watch callback of unknown kind %d", e.Kind)
	}
	n = 1
	if e.Key, n, short, err = replyString(b, n, "key", limits.Key); short || err != nil {
		return e, 0, short, err
	}
	if e.Old, n, short, err = replyString(b, n, "value", limits.Value); short || err != nil {
		return e, 0, short, err
	}
	if e.New, n, short, err = replyString(b, n, "value", limits.Value); short || err != nil {
		return e, 0, short, err
	}
	return e, n, false, nil
}
