// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
)

// Limits bound what a parser accepts. A length over its limit is an error before any memory is taken for it.
type Limits struct {
	Key     int // bytes of a key
	Value   int // bytes of a value
	Keys    int // keys of one request or reply
	Request int // bytes of one request or reply, all in all
}

// DefaultLimits are those of PyTorch's libuv server, and a bound on one request.
var DefaultLimits = Limits{Key: 8 << 10, Value: 8 << 20, Keys: 128 << 10, Request: 256 << 20}

// Request is one request. Its slices are views into the buffer it was parsed from.
type Request struct {
	Op       Op
	Wait     bool   // QUEUE_POP of Native: wait for an item
	Nonce    uint32 // VALIDATE, PING, Upgrade; the request to cancel for CANCEL_WAIT of Native; ARRIVE: how many; BACKUP: 1 begins one
	ID       uint32 // Native: the frame's id
	Num      int64  // ADD: the delta; BARRIER, ARRIVE: the world size; SESSION: the generation; ACKED: a number
	Key      []byte
	Value    []byte // the new value; COMPARE_SET: the desired one
	Expected []byte // COMPARE_SET; HELLO, CLEAR: the identity that the client knows; SESSION: the token
	List     List   // CHECK, WAIT, MULTI_GET: keys; MULTI_SET: keys and values in turn

	Seq uint64 // the number of a request of a session that changes something; 0: it has none
	Ack uint64 // of a session, the smallest number whose answer has not come yet
	Sub uint32 // which client of the session asks; 0: the only one
}

// List is a sequence of strings as it stands on the wire, checked already.
type List struct {
	// Count is the number of keys; a list of MULTI_SET holds twice as many strings.
	Count int
	raw   []byte
}

// Next takes the first string off the list. The list must not be empty.
func (l *List) Next() []byte {
	n := binary.LittleEndian.Uint64(l.raw)
	s := l.raw[8 : 8+n : 8+n]
	l.raw = l.raw[8+n:]
	return s
}

// NewList returns a list of keys in memory of its own.
func NewList(keys ...[]byte) List {
	l := List{Count: len(keys)}
	for _, k := range keys {
		l.raw = AppendBytes(l.raw, k)
	}
	return l
}

// Clone returns the list in memory of its own.
func (l *List) Clone() List { return List{Count: l.Count, raw: append([]byte(nil), l.raw...)} }

// Empty reports whether all strings were taken.
func (l *List) Empty() bool { return len(l.raw) == 0 }

// Size returns the number of bytes that the remaining strings take on the wire.
func (l *List) Size() int { return len(l.raw) }

// Progress remembers how far an incomplete request was checked, so that a request that arrives in many pieces is looked
// at once and not again from its start with every piece. Its zero value is the start of a request.
type Progress struct {
	at   int  // offset of the next unread field; 0: nothing read
	need int  // bytes that the request has at least
	left int  // fields of a list that follow
	even bool // the next field of a MULTI_SET is a value
	list bool // inside a list
	step uint8
}

// Need returns how many bytes an incomplete request has at least, as far as it was read: those of the string that is being
// received, and of the lengths of those that follow in its list.
func (p *Progress) Need() int { return p.need }

// field kinds of a request's layout
type field uint8

const (
	fKey field = iota + 1
	fValue
	fExpected
	fNum
	fNonce
	fWait
	fKeys
	fPairs
	fSeq
	fAck
	fSub
	fInner // a request
)

// layouts has the fields of a request by dialect and operation.
var layouts = [DialectCount][OpLimit][]field{Legacy: fields, V: fields, Native: nativeFields()}

var fields = [OpLimit][]field{
	Validate: {fNonce}, Set: {fKey, fValue}, CompareSet: {fKey, fExpected, fValue}, Get: {fKey}, Add: {fKey, fNum},
	Check: {fKeys}, Wait: {fKeys}, NumKeys: {}, DeleteKey: {fKey}, Append: {fKey, fValue}, MultiGet: {fKeys},
	MultiSet: {fPairs}, CancelWait: {}, Ping: {fNonce}, QueuePush: {fKey, fValue}, QueuePop: {fKey}, QueueLen: {fKey},
	ListKeys: {}, Barrier: {fKey, fNum}, WatchKey: {fKey}, Upgrade: {fNonce}, Stats: {},
	Hello: {fExpected}, Clear: {fExpected}, Backup: {fNonce},
}

// nativeFields is fields for the requests inside frames.
func nativeFields() [OpLimit][]field {
	native := fields
	native[QueuePop], native[CancelWait] = []field{fKey, fWait}, []field{fNonce}
	native[Session], native[Leave], native[Acked] = []field{fKey, fExpected, fNum, fAck}, []field{fSub}, []field{fNum}
	native[Numbered] = []field{fSeq, fAck, fSub, fInner}
	native[Peek], native[Await], native[Arrive] = []field{fKeys}, []field{fKeys}, []field{fKey, fNum, fNonce}
	return native
}

// ParseRequest reads one request of the Legacy or V dialect from the start of b. It returns the number of bytes the
// request takes, or 0 when b does not hold all of it yet: then p remembers what was checked and must be passed again
// with the longer b. After a whole request or an error p is at its start again.
//
// A request that is over a limit or that the dialect does not have is an error; the connection cannot go on then.
func ParseRequest(d Dialect, b []byte, limits *Limits, p *Progress, r *Request) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if p.at == 0 {
		if n := parseWhole(d, b, limits, r); n > 0 {
			return n, nil
		}
	}
	n, err := p.scan(d, b, limits)
	if err != nil || n == 0 {
		if err != nil {
			*p = Progress{}
		}
		return 0, err
	}
	*p = Progress{}
	if got := parseWhole(d, b[:n], limits, r); got != n {
		return 0, cohort.Newf("tcpstore: decode", cohort.Internal, "a %s request of %d bytes was read as %d", r.Op, n, got)
	}
	return n, nil
}

// parseWhole is the fast path: it reads a request that is all there and within the limits, and returns 0 otherwise.
func parseWhole(d Dialect, b []byte, limits *Limits, r *Request) int {
	op := opOf[d][b[0]]
	if op == noOp {
		return 0
	}
	*r = Request{Op: op, ID: r.ID} // nothing of an earlier request
	at := 1
	var ok bool
	for _, f := range layouts[d][op] {
		switch f {
		case fKey:
			r.Key, at, ok = stringAt(b, at, limits.Key)
		case fValue:
			r.Value, at, ok = stringAt(b, at, limits.Value)
		case fExpected:
			r.Expected, at, ok = stringAt(b, at, limits.Value)
		case fNum:
			if ok = len(b)-at >= 8; ok {
				r.Num = int64(binary.LittleEndian.Uint64(b[at:])) //nolint:gosec // two's complement, as on the wire
				at += 8
			}
		case fNonce:
			if ok = len(b)-at >= 4; ok {
				r.Nonce = binary.LittleEndian.Uint32(b[at:])
				at += 4
			}
		case fWait:
			if ok = len(b)-at >= 1 && b[at] <= 1; ok {
				r.Wait = b[at] == 1
				at++
			}
		case fKeys:
			r.List, at, ok = listAt(b, at, limits, false)
		case fPairs:
			r.List, at, ok = listAt(b, at, limits, true)
		case fAck:
			if ok = len(b)-at >= 8; ok {
				r.Ack = binary.LittleEndian.Uint64(b[at:])
				at += 8
			}
		case fSub:
			if ok = len(b)-at >= 4; ok {
				r.Sub = binary.LittleEndian.Uint32(b[at:])
				at += 4
			}
		case fSeq, fInner:
			ok = false // only at the start of a frame, see ParseFrameRequest
		}
		if !ok {
			return 0
		}
	}
	if at > limits.Request || (op == Validate && r.Nonce != magic) {
		return 0
	}
	return at
}

// SetSize returns the length of the value of the SET that b begins with, as far as it has arrived; 0 if b begins with
// something else or the length is not there yet. It looks at no limit.
func SetSize(d Dialect, b []byte) int {
	if d == Native {
		if b = b[min(FrameHeader, len(b)):]; len(b) > 0 && b[0] == byte(Numbered) {
			b = b[min(numberedHeader, len(b)):]
		}
	}
	if d == Undetected || len(b) < 9 || opOf[d][b[0]] != Set {
		return 0
	}
	n := binary.LittleEndian.Uint64(b[1:])
	if n > uint64(len(b)) || len(b)-9-int(n) < 8 { //nolint:gosec // at most the length of b
		return 0
	}
	return int(min(binary.LittleEndian.Uint64(b[9+n:]), uint64(len(b)))) //nolint:gosec // as above
}

// stringAt returns the string at offset at of b and the offset behind it.
func stringAt(b []byte, at, limit int) ([]byte, int, bool) {
	if len(b)-at < 8 {
		return nil, at, false
	}
	n := binary.LittleEndian.Uint64(b[at:])
	at += 8
	if n > uint64(limit) || n > uint64(len(b)-at) { //nolint:gosec // neither is negative
		return nil, at, false
	}
	end := at + int(n) //nolint:gosec // at most the length of b
	return b[at:end:end], end, true
}

func listAt(b []byte, at int, limits *Limits, pairs bool) (List, int, bool) {
	if len(b)-at < 8 {
		return List{}, at, false
	}
	n := binary.LittleEndian.Uint64(b[at:])
	at += 8
	if n > uint64(limits.Keys) { //nolint:gosec // a limit is not negative
		return List{}, at, false
	}
	start := at
	for range n {
		var ok bool
		if _, at, ok = stringAt(b, at, limits.Key); !ok {
			return List{}, at, false
		}
		if pairs {
			if _, at, ok = stringAt(b, at, limits.Value); !ok {
				return List{}, at, false
			}
		}
	}
	return List{Count: int(n), raw: b[start:at:at]}, at, true //nolint:gosec // checked against the limit
}

// scan checks the fields that have arrived and returns the request's length once all have.
func (p *Progress) scan(d Dialect, b []byte, limits *Limits) (int, error) {
	op, ok := OpOf(d, b[0])
	if !ok {
		return 0, cohort.Newf("tcpstore: decode", cohort.Protocol, "code %d is not known in the %s dialect", b[0], d)
	}
	if p.at == 0 {
		p.at = 1
	}
	fields := layouts[d][op]
	for int(p.step) < len(fields) {
		done, err := p.field(op, fields[p.step], b, limits)
		if err != nil || !done {
			return 0, err
		}
		p.step++
	}
	if p.at > limits.Request {
		return 0, tooLarge(op, "request", uint64(p.at), limits.Request) //nolint:gosec // not negative
	}
	return p.at, nil
}

func (p *Progress) field(op Op, f field, b []byte, limits *Limits) (done bool, err error) {
	switch f {
	case fKey:
		return p.string(op, "key", b, limits.Key, limits)
	case fValue, fExpected:
		return p.string(op, "value", b, limits.Value, limits)
	case fNum, fAck:
		return p.fixed(b, 8), nil
	case fSub:
		return p.fixed(b, 4), nil
	case fSeq, fInner:
		return false, cohort.Newf("tcpstore: decode", cohort.Protocol, "a %s request inside of another", op)
	case fNonce:
		if len(b)-p.at < 4 {
			return false, nil
		}
		if op == Validate && binary.LittleEndian.Uint32(b[p.at:]) != magic {
			return false, cohort.Newf("tcpstore: decode", cohort.Protocol, "validate with magic 0x%08x, want 0x%08x",
				binary.LittleEndian.Uint32(b[p.at:]), magic)
		}
		return p.fixed(b, 4), nil
	case fWait:
		if len(b) > p.at && b[p.at] > 1 {
			return false, cohort.Newf("tcpstore: decode", cohort.Protocol, "%s with wait flag %d, want 0 or 1", op, b[p.at])
		}
		return p.fixed(b, 1), nil
	default:
		return p.items(op, f == fPairs, b, limits)
	}
}

func (p *Progress) fixed(b []byte, n int) bool {
	if len(b)-p.at < n {
		p.need = p.at + n
		return false
	}
	p.at += n
	return true
}

// string checks the length of the string at p.at as soon as it is there, and moves behind the string once it is whole.
func (p *Progress) string(op Op, what string, b []byte, limit int, limits *Limits) (bool, error) {
	following := 8 * max(p.left-1, 0)
	if len(b)-p.at < 8 {
		p.need = p.at + 8 + following
		return false, nil
	}
	n := binary.LittleEndian.Uint64(b[p.at:])
	if n > uint64(limit) { //nolint:gosec // a limit is not negative
		return false, tooLarge(op, what, n, limit)
	}
	end := p.at + 8 + int(n) //nolint:gosec // at most the limit
	if end > limits.Request {
		return false, tooLarge(op, "request", uint64(end), limits.Request) //nolint:gosec // not negative
	}
	if len(b) < end {
		p.need = end + following
		return false, nil
	}
	p.at = end
	return true, nil
}

func (p *Progress) items(op Op, pairs bool, b []byte, limits *Limits) (bool, error) {
	if !p.list {
		if len(b)-p.at < 8 {
			return false, nil
		}
		n := binary.LittleEndian.Uint64(b[p.at:])
		if n > uint64(limits.Keys) { //nolint:gosec // a limit is not negative
			return false, tooLarge(op, "number of keys", n, limits.Keys)
		}
		p.list, p.left = true, int(n) //nolint:gosec // at most the limit
		if pairs {
			p.left *= 2
		}
		p.at += 8
	}
	for p.left > 0 {
		what, limit := "key", limits.Key
		if p.even {
			what, limit = "value", limits.Value
		}
		done, err := p.string(op, what, b, limit, limits)
		if err != nil || !done {
			return false, err
		}
		p.left--
		p.even = pairs && !p.even
	}
	p.list = false
	return true, nil
}

func tooLarge(op Op, what string, n uint64, limit int) error {
	return cohort.Newf("tcpstore: decode", cohort.TooLarge, "%s: %s of %d is over the limit of %d", op, what, n, limit)
}
