// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"encoding/binary"
	"strconv"
)

// Dialect is one of the languages that are spoken on a store's port.
type Dialect uint8

// The dialects.
const (
	Undetected Dialect = iota // not enough bytes seen yet
	Legacy                    // PyTorch 1.13 (L0) and its successor's codes 9 to 12 (L1)
	V                         // PyTorch 2.4 and later (V0 to V3), opened by VALIDATE
	Native                    // frames with ids around V's requests, between cohort's client and server
	DialectCount
)

// String returns the dialect's name as the statistics show it.
func (d Dialect) String() string {
	switch d {
	case Undetected:
		return "silent"
	case Legacy:
		return "legacy"
	case V:
		return "v"
	case Native:
		return "native"
	default:
		return "dialect " + strconv.Itoa(int(d))
	}
}

// Op is an operation. Its number is the operation's code in the V dialect; operations that V lacks have numbers of
// their own, which never clash.
type Op uint8

// The operations.
const (
	Validate   Op = 0
	Set        Op = 1
	CompareSet Op = 2
	Get        Op = 3
	Add        Op = 4
	Check      Op = 5
	Wait       Op = 6
	NumKeys    Op = 7
	DeleteKey  Op = 8
	Append     Op = 9
	MultiGet   Op = 10
	MultiSet   Op = 11
	CancelWait Op = 12
	Ping       Op = 13
	QueuePush  Op = 14
	QueuePop   Op = 15
	QueueLen   Op = 16
	ListKeys   Op = 17
	Barrier    Op = 18

	WatchKey Op = 0x40 // Legacy only, code 7 there

	Upgrade Op = 0x60 // V only: from here on the connection is Native
	Stats   Op = 0x61 // Native only
	Hello   Op = 0x62 // Native only: which store is this
	Clear   Op = 0x63 // Native only: forget all keys

	// The operations of sessions and of gateways, Native only.
	Session  Op = 0x64 // open a session, or open it again
	Leave    Op = 0x65 // a client of a session is gone, or the session
	Acked    Op = 0x66 // an answer has come that Numbered does not acknowledge
	Numbered Op = 0x67 // in front of a request of a session that changes something
	Peek     Op = 0x68 // read keys without waiting for them
	Await    Op = 0x69 // wait as clients of PyTorch do
	Arrive   Op = 0x6A // several arrivals at a barrier

	Backup Op = 0x70 // Native only: what the store holds, a part at a time

	// OpLimit is one more than the largest Op, for tables.
	OpLimit = 0x71
)

var opNames = [OpLimit]string{
	Validate: "validate", Set: "set", CompareSet: "compare_set", Get: "get", Add: "add", Check: "check", Wait: "wait",
	NumKeys: "num_keys", DeleteKey: "delete_key", Append: "append", MultiGet: "multi_get", MultiSet: "multi_set",
	CancelWait: "cancel_wait", Ping: "ping", QueuePush: "queue_push", QueuePop: "queue_pop", QueueLen: "queue_len",
	ListKeys: "list_keys", Barrier: "barrier", WatchKey: "watch_key", Upgrade: "native", Stats: "stats",
	Hello: "hello", Clear: "clear", Session: "session", Leave: "leave", Acked: "acked", Numbered: "numbered", Peek: "peek",
	Await: "await", Arrive: "arrive", Backup: "backup",
}

// String returns the operation's name, as in PyTorch's Python API where it has one.
func (o Op) String() string {
	if o < OpLimit && opNames[o] != "" {
		return opNames[o]
	}
	return "op " + strconv.Itoa(int(o))
}

// noOp marks a code that a dialect does not have.
const noOp Op = 0xFF

// opOf maps [dialect][code] to the operation.
var opOf = buildOps()

// codeOf maps [dialect][op] to the code, or noOp.
var codeOf = buildCodes()

func buildOps() (t [DialectCount][256]Op) {
	for d := range t {
		for c := range t[d] {
			t[d][c] = noOp
		}
	}
	legacy := [...]Op{
		Set, CompareSet, Get, Add, Check, Wait, NumKeys, WatchKey, DeleteKey, // L0
		Append, MultiGet, MultiSet, CancelWait, // L1
	}
	copy(t[Legacy][:], legacy[:])
	for o := Validate; o <= Barrier; o++ {
		t[V][o] = o
		if o != Validate {
			t[Native][o] = o
		}
	}
	t[V][Upgrade] = Upgrade
	for _, o := range []Op{Stats, Hello, Clear, Session, Leave, Acked, Numbered, Peek, Await, Arrive, Backup} {
		t[Native][o] = o
	}
	return t
}

func buildCodes() (t [DialectCount][OpLimit]Op) {
	for d := range t {
		for o := range t[d] {
			t[d][o] = noOp
		}
		for c, o := range opOf[d] {
			if o != noOp {
				t[d][o] = Op(c)
			}
		}
	}
	return t
}

// OpOf returns the operation that code means in a dialect.
func OpOf(d Dialect, code byte) (Op, bool) {
	if d >= DialectCount {
		return 0, false
	}
	o := opOf[d][code]
	return o, o != noOp
}

// Constants of the wire.
const (
	// magic follows the VALIDATE code.
	magic uint32 = 0x3C85F7CE
	// NativeVersion follows the Upgrade code.
	NativeVersion uint32 = 1
	// NativeKey is the reserved raw key by which a V client recognises cohort's server: CHECK of it alone answers
	// Ready there and NotReady on every other server. No key that starts with ReservedPrefix can be stored.
	NativeKey = "\x00cohort/1"
	// ReservedPrefix starts the keys that are the server's own. A user's key starts with "/" on the wire.
	ReservedPrefix = "\x00cohort/"
	// SessionsKey is the reserved raw key by which a client recognises a server that has sessions: CHECK of it alone answers Ready
	// there.
	SessionsKey = "\x00cohort/sessions/1"
	// SessionIDSize is the length of a session's id, and of the token with which it is opened again.
	SessionIDSize = 16
	// SessionWindow is how many answers a server remembers of a session that are not acknowledged.
	SessionWindow = 4096
	// StatusMoved is the status of a request that another server has to be asked: the body is i64 term | string address, the address
	// empty if it is not known yet. No server sends it so far.
	StatusMoved byte = 0x40
	// ClaimPrefix starts the reserved keys of claims: COMPARE_SET on one of them, by a Native client, claims the name
	// that follows for its connection. See internal/store/storecore.
	ClaimPrefix = ReservedPrefix + "claim/"
	// ReadBackPrefix starts the questions whether the PyTorch client that set a key has read it: CHECK of the prefix and the
	// key, by a Native client.
	ReadBackPrefix = ReservedPrefix + "readback/"
	// IdentityPrefix starts the questions whether the store has a certain identity: CHECK of the prefix and the
	// identity, in any dialect. CHECK of the prefix alone answers Ready where they can be asked.
	IdentityPrefix = ReservedPrefix + "identity/"
	// IdentitySize is the length of a store's identity.
	IdentitySize = 16
	// KeyPrefix is put in front of every user key by the client.
	KeyPrefix = "/"
	// WorkerCountKey is the raw key that counts the workers that joined.
	WorkerCountKey = "init/"
)

// The one-byte replies.
const (
	Ready        byte = 0 // CHECK: all keys exist
	NotReady     byte = 1 // CHECK: one is missing
	StopWaiting  byte = 0 // WAIT, BARRIER: done
	WaitCanceled byte = 1 // CANCEL_WAIT
	Watching     byte = 3 // WATCH_KEY: registered
	QueueReady   byte = 1 // AWAIT: one of the keys is a queue with items only
)

// The first byte of a WATCH_KEY callback.
const (
	KeyUpdated  byte = 0
	KeyCreated  byte = 1
	KeyDeleted  byte = 2
	KeyAppended byte = 4
)

// Detect tells a connection's dialect from its first bytes, or Undetected when there are too few. At most five are
// needed: a client of V begins with VALIDATE, and a legacy SET, which begins with the same code, is never shorter.
func Detect(b []byte) Dialect {
	switch {
	case len(b) == 0:
		return Undetected
	case b[0] != 0:
		return Legacy
	case len(b) < 5:
		return Undetected
	case binary.LittleEndian.Uint32(b[1:]) == magic:
		return V
	default:
		return Legacy
	}
}
