// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"encoding/binary"
	"fmt"
)

// The Append functions put one request behind b and return the longer slice. Keys are raw: the caller puts KeyPrefix in
// front of a user's key. They panic when the dialect does not have the operation, which is a bug of the caller.
// In the Native dialect they write what follows a frame's id.

// AppendValidate is the first message of a V client.
func AppendValidate(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(Validate)), magic)
}

// AppendPing asks for nonce back.
func AppendPing(b []byte, d Dialect, nonce uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendCode(b, d, Ping), nonce)
}

// AppendUpgrade turns a V connection into a Native one. It has no reply.
func AppendUpgrade(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(Upgrade)), NativeVersion)
}

// AppendHello asks a Native server for its identity. With an expected one that is not the server's, that request and all
// later ones of the connection are answered with the status cohort.Replaced.
func AppendHello(b []byte, expected []byte) []byte {
	return AppendBytes(appendCode(b, Native, Hello), expected)
}

// AppendClear asks a Native server to forget all keys. The identity must be the server's.
func AppendClear(b []byte, identity []byte) []byte {
	return AppendBytes(appendCode(b, Native, Clear), identity)
}

// AppendBackup asks a Native server for the next part of what it holds, or begins with the first.
func AppendBackup(b []byte, begin bool) []byte {
	n := uint32(0)
	if begin {
		n = 1
	}
	return AppendUint32(appendCode(b, Native, Backup), n)
}

// AppendSession opens a session at a Native server, or opens it again with a higher generation. Answers to numbers below ack have come.
func AppendSession(b []byte, id, token [SessionIDSize]byte, generation, ack uint64) []byte {
	b = AppendBytes(AppendBytes(appendCode(b, Native, Session), id[:]), token[:])
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, generation), ack)
}

// AppendLeave says that a client of a session is gone; 0 ends the session. It has no reply.
func AppendLeave(b []byte, sub uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendCode(b, Native, Leave), sub)
}

// AppendAcked says that the answer to a numbered pop that waits, or to a numbered arrival at a barrier, has come. It has no reply.
func AppendAcked(b []byte, seq uint64) []byte {
	return binary.LittleEndian.AppendUint64(appendCode(b, Native, Acked), seq)
}

// AppendArrive counts several members in at a barrier of size members. The reply is StopWaiting.
func AppendArrive(b []byte, key string, size int64, count uint32) []byte {
	return binary.LittleEndian.AppendUint32(AppendInt(AppendString(appendCode(b, Native, Arrive), key), size), count)
}

// AppendSet stores value. Only Native has a reply.
func AppendSet(b []byte, d Dialect, key string, value []byte) []byte {
	return AppendBytes(AppendString(appendCode(b, d, Set), key), value)
}

// AppendCompareSet replaces expected by desired. The reply is a value.
func AppendCompareSet(b []byte, d Dialect, key string, expected, desired []byte) []byte {
	return AppendBytes(AppendBytes(AppendString(appendCode(b, d, CompareSet), key), expected), desired)
}

// AppendAdd adds delta. The reply is a number.
func AppendAdd(b []byte, d Dialect, key string, delta int64) []byte {
	return AppendInt(AppendString(appendCode(b, d, Add), key), delta)
}

// AppendBarrier joins a barrier of size members. The reply is StopWaiting.
func AppendBarrier(b []byte, d Dialect, key string, size int64) []byte {
	return AppendInt(AppendString(appendCode(b, d, Barrier), key), size)
}

// AppendKey writes a request that has one key and nothing else: Get, DeleteKey, QueuePop, QueueLen, WatchKey.
func AppendKey(b []byte, d Dialect, op Op, key string) []byte {
	switch op {
	case Get, DeleteKey, QueueLen, WatchKey:
	case QueuePop:
		if d == Native {
			panic("tcpstore: a native queue_pop needs its wait flag: use AppendQueuePop")
		}
	default:
		panic(fmt.Sprintf("tcpstore: %s does not take one key", op))
	}
	return AppendString(appendCode(b, d, op), key)
}

// AppendKeyValue writes a request that has one key and one value: Set, Append, QueuePush.
func AppendKeyValue(b []byte, d Dialect, op Op, key string, value []byte) []byte {
	switch op {
	case Set, Append, QueuePush:
	default:
		panic(fmt.Sprintf("tcpstore: %s does not take one key and one value", op))
	}
	return AppendBytes(AppendString(appendCode(b, d, op), key), value)
}

// AppendQueuePop writes a Native pop, which may wait for an item.
func AppendQueuePop(b []byte, key string, wait bool) []byte {
	b = AppendString(appendCode(b, Native, QueuePop), key)
	if wait {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendKeys writes a request with a list of keys: Check, Wait, MultiGet.
func AppendKeys(b []byte, d Dialect, op Op, keys ...string) []byte {
	switch op {
	case Check, Wait, MultiGet, Peek, Await:
	default:
		panic(fmt.Sprintf("tcpstore: %s does not take a list of keys", op))
	}
	b = binary.LittleEndian.AppendUint64(appendCode(b, d, op), uint64(len(keys)))
	for _, k := range keys {
		b = AppendString(b, k)
	}
	return b
}

// AppendMultiSet stores values[i] under keys[i]. The two must have the same length.
func AppendMultiSet(b []byte, d Dialect, keys []string, values [][]byte) []byte {
	if len(keys) != len(values) {
		panic("tcpstore: multi_set with a different number of keys and values")
	}
	b = binary.LittleEndian.AppendUint64(appendCode(b, d, MultiSet), uint64(len(keys)))
	for i, k := range keys {
		b = AppendBytes(AppendString(b, k), values[i]) //nolint:gosec // the lengths are equal
	}
	return b
}

// AppendPlain writes a request without arguments: NumKeys, ListKeys, Stats, and CancelWait of Legacy and V.
func AppendPlain(b []byte, d Dialect, op Op) []byte {
	if len(layouts[d][op]) != 0 {
		panic(fmt.Sprintf("tcpstore: %s has arguments", op))
	}
	return appendCode(b, d, op)
}

// AppendCancel asks a Native server to end request id, which is then answered with the status cohort.Canceled. There is
// no reply of its own.
func AppendCancel(b []byte, id uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendCode(b, Native, CancelWait), id)
}

// AppendString writes a length and a string, as in every request and reply.
func AppendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// AppendBytes is AppendString for bytes.
func AppendBytes(b, value []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(value))), value...)
}

// AppendInt writes a 64-bit number, as in every request and reply.
func AppendInt(b []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(n)) //nolint:gosec // two's complement, as on the wire
}

// AppendUint32 writes a 32-bit number: the reply to PING.
func AppendUint32(b []byte, n uint32) []byte { return binary.LittleEndian.AppendUint32(b, n) }

func appendCode(b []byte, d Dialect, op Op) []byte {
	code := codeOf[d][op]
	if code == noOp {
		panic(fmt.Sprintf("tcpstore: the %s dialect has no %s", d, op))
	}
	return append(b, byte(code))
}
