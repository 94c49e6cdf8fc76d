// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// Type is the kind of a frame. Numbers below 0x1000 are PyTorch's message types.
type Type uint16

// Types of the transport itself. Agents use the numbers from FirstAgentType on.
const (
	Hello        Type = 0x1000 // the first frame of each side
	pingFrame    Type = 0x1001
	pongFrame    Type = 0x1002
	goodbyeFrame Type = 0x1003 // the sender closes on purpose; the payload says why
	proofFrame   Type = 0x1004 // the second frame of each side: it knows the secret of the name in its hello
	// FirstAgentType is the first number that the agents may use for messages of their own: cancellation, the control
	// stream of references, and so on.
	FirstAgentType Type = 0x1100
)

// The direction is part of PyTorch's numbers; agents' own answers set the response bit too.
const (
	requestBit  = 0x100
	responseBit = 0x200
)

// IsResponse reports whether a frame of this type answers a request.
func (t Type) IsResponse() bool { return t&responseBit != 0 && (t < Hello || t >= FirstAgentType) }

// isRequest reports whether PyTorch's numbering expects an answer to this frame.
func (f *Frame) isRequest() bool { return f.Type&requestBit != 0 && f.Type < Hello }

// isAnswer reports whether the frame answers one that isRequest is true for.
func (f *Frame) isAnswer() bool { return f.Type < Hello && f.Type.IsResponse() }

// HeaderSize is the length of a header.
const HeaderSize = 48

const (
	magic     = 0xc7
	forkSize  = 24
	maxForks  = math.MaxUint16
	maxTrace  = 64
	maxTensor = 64 << 10 // storages of one frame
)

// Fork is a reference that travels in the frame, named outside the payload so that it can be released even when the
// payload cannot be read.
type Fork struct {
	Owner, RRefOn, ForkOn, Parent int16
	RRef, Fork                    int64
}

// Frame is one message between two Go workers.
type Frame struct {
	Type  Type
	Flags uint8
	// BufferEmpty says of a received frame that nothing behind it had been read yet: no other frame waits for OnFrame to return.
	BufferEmpty bool
	ID          uint64
	Incarnation uint64        // set by the link when sent
	Deadline    time.Duration // time left; zero means none
	Forks       []Fork
	Trace       []byte // a trace context, at most 64 bytes
	Prefix      []byte // of a frame that is sent: bytes of the payload before Payload
	Payload     []byte
	Storages    []*tensor.Storage
	// Written, when not nil, is called once the frame has been written and its memory may be used for something else. It
	// must not block. It is not called for a frame that is not written to its end.
	Written func()
}

// header is the fixed part of a frame.
type header struct {
	Body        uint32
	Type        Type
	Flags       uint8
	ID          uint64
	Incarnation uint64
	Deadline    time.Duration
	Extension   uint32
	Storages    uint32
	Bytes       uint64
}

// Limits bound what a peer may send. The zero value of a field means its default.
type Limits struct {
	Body    int64 // extension and payload; default 1 GiB
	Message int64 // with storages; default 16 GiB
	Queue   int   // bytes of small frames that wait to be written; default 8 MiB
	Posted  int   // large frames that wait to be written; default 1024
	Waiting int64 // bytes of large frames that wait before an answer is refused; default 1 GiB
}

func (l Limits) withDefaults() Limits {
	if l.Body <= 0 || l.Body > math.MaxUint32 {
		l.Body = 1 << 30
	}
	if l.Message <= 0 {
		l.Message = 16 << 30
	}
	l.Message = min(l.Message, math.MaxInt) // a storage has to fit memory
	if l.Waiting <= 0 {
		l.Waiting = 1 << 30
	}
	if l.Queue <= 0 {
		l.Queue = 8 << 20
	}
	if l.Posted <= 0 {
		l.Posted = 1024
	}
	return l
}

func bad(format string, args ...any) error {
	return cohort.Newf("cohort transport: decode", cohort.Protocol, format, args...)
}

// ParseHeader decodes and bounds a header.
func ParseHeader(b []byte, limits Limits) (header, error) {
	limits = limits.withDefaults()
	if len(b) < HeaderSize {
		return header{}, bad("a header of %d bytes", len(b))
	}
	if b[7] != magic {
		return header{}, bad("protocol error: got magic %x, want %x", b[7], magic)
	}
	h := header{
		Body: binary.LittleEndian.Uint32(b), Type: Type(binary.LittleEndian.Uint16(b[4:])), Flags: b[6],
		ID: binary.LittleEndian.Uint64(b[8:]), Incarnation: binary.LittleEndian.Uint64(b[16:]),
		Deadline:  time.Duration(binary.LittleEndian.Uint64(b[24:])), //nolint:gosec // negative is refused below
		Extension: binary.LittleEndian.Uint32(b[32:]), Storages: binary.LittleEndian.Uint32(b[36:]),
		Bytes: binary.LittleEndian.Uint64(b[40:]),
	}
	switch {
	case int64(h.Body) > limits.Body:
		return h, bad("a body of %d bytes, the limit is %d", h.Body, limits.Body)
	case h.Extension > h.Body || int64(h.Extension) < 3+8*int64(h.Storages):
		return h, bad("an extension of %d bytes in a body of %d with %d storages", h.Extension, h.Body, h.Storages)
	case h.Storages > maxTensor:
		return h, bad("%d storages, the limit is %d", h.Storages, maxTensor)
	case h.Bytes > uint64(limits.Message): //nolint:gosec // limits are positive
		return h, bad("storages of %d bytes, the limit is %d", h.Bytes, limits.Message)
	case h.Deadline < 0:
		return h, bad("a deadline of %v", h.Deadline)
	}
	return h, nil
}

// Parse decodes the body that belongs to a header. Payload and trace are parts of body. It returns the lengths of the
// storages that follow, for which the frame has room.
func (h header) Parse(body []byte) (*Frame, []int, error) {
	if int64(len(body)) != int64(h.Body) {
		return nil, nil, bad("a body of %d bytes where %d were announced", len(body), h.Body)
	}
	room := &struct { // most frames have at most one storage
		Frame
		storages [1]*tensor.Storage
		lengths  [1]int
	}{Frame: Frame{
		Type: h.Type, Flags: h.Flags, ID: h.ID, Incarnation: h.Incarnation, Deadline: h.Deadline,
		Payload: body[h.Extension:],
	}}
	f := &room.Frame
	ext := body[:h.Extension]
	var lengths []int
	total := uint64(0)
	if h.Storages > 0 {
		lengths, f.Storages = room.lengths[:], room.storages[:0]
		if h.Storages > 1 {
			lengths, f.Storages = make([]int, h.Storages), make([]*tensor.Storage, 0, h.Storages)
		}
		for i := range lengths {
			n := binary.LittleEndian.Uint64(ext[8*i:])
			if n > h.Bytes-total {
				return nil, nil, bad("the storages are longer than the %d bytes announced", h.Bytes)
			}
			total += n
			lengths[i] = int(n) //nolint:gosec // at most the limit
		}
	}
	if total != h.Bytes {
		return nil, nil, bad("storages of %d bytes where %d were announced", total, h.Bytes)
	}
	ext = ext[8*h.Storages:]
	forks := int(binary.LittleEndian.Uint16(ext))
	ext = ext[2:]
	if len(ext) < forks*forkSize+1 {
		return nil, nil, bad("%d forks in %d bytes", forks, len(ext))
	}
	if forks > 0 {
		f.Forks = make([]Fork, forks)
	}
	for i := range f.Forks {
		b := ext[i*forkSize:]
		f.Forks[i] = Fork{
			Owner: i16(b), RRefOn: i16(b[2:]), ForkOn: i16(b[4:]), Parent: i16(b[6:]),
			RRef: i64(b[8:]), Fork: i64(b[16:]),
		}
	}
	ext = ext[forks*forkSize:]
	if n := int(ext[0]); n != len(ext)-1 || n > maxTrace {
		return nil, nil, bad("a trace of %d bytes in %d", n, len(ext)-1)
	}
	if len(ext) > 1 {
		f.Trace = ext[1:]
	}
	return f, lengths, nil
}

func i16(b []byte) int16 { return int16(binary.LittleEndian.Uint16(b)) } //nolint:gosec // two's complement
func i64(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) } //nolint:gosec // two's complement

// check says whether the frame can be sent within the limits, which have their defaults.
func (f *Frame) check(limits Limits) error {
	refuse := func(code cohort.Code, format string, args ...any) error {
		return cohort.Newf("cohort transport: send", code, format, args...)
	}
	payload := len(f.Prefix) + len(f.Payload)
	switch body := int64(f.extension()) + int64(payload); {
	case body > limits.Body:
		return refuse(cohort.TooLarge, "a payload of %d bytes, the limit is %d", payload, limits.Body)
	case len(f.Storages) > maxTensor || len(f.Forks) > maxForks:
		return refuse(cohort.TooLarge, "%d tensors and %d references, the limits are %d and %d", len(f.Storages), len(f.Forks),
			maxTensor, maxForks)
	case len(f.Trace) > maxTrace:
		return refuse(cohort.InvalidArgument, "a trace of %d bytes, the limit is %d", len(f.Trace), maxTrace)
	case f.Deadline < 0:
		return refuse(cohort.DeadlineExceeded, "the deadline has passed")
	}
	if n := f.bytes(); n > limits.Message {
		return refuse(cohort.TooLarge, "tensors of %d bytes, the limit is %d", n, limits.Message)
	}
	return nil
}

func (f *Frame) extension() int {
	return 8*len(f.Storages) + 2 + forkSize*len(f.Forks) + 1 + len(f.Trace)
}

func (f *Frame) bytes() int64 {
	n := int64(0)
	for _, s := range f.Storages {
		n += int64(s.Len())
	}
	return n
}

// AppendHead appends header and extension. Prefix, payload and storages follow. The frame must have passed check.
func (f *Frame) AppendHead(b []byte) []byte {
	extension := f.extension()
	b = binary.LittleEndian.AppendUint32(b, uint32(extension+len(f.Prefix)+len(f.Payload))) //nolint:gosec // checked
	b = binary.LittleEndian.AppendUint16(b, uint16(f.Type))
	b = append(b, f.Flags, magic)
	b = binary.LittleEndian.AppendUint64(b, f.ID)
	b = binary.LittleEndian.AppendUint64(b, f.Incarnation)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Deadline))      //nolint:gosec // not negative
	b = binary.LittleEndian.AppendUint32(b, uint32(extension))       //nolint:gosec // checked
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Storages))) //nolint:gosec // checked
	b = binary.LittleEndian.AppendUint64(b, uint64(f.bytes()))       //nolint:gosec // a length
	for _, s := range f.Storages {
		b = binary.LittleEndian.AppendUint64(b, uint64(s.Len())) //nolint:gosec // a length
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(f.Forks))) //nolint:gosec // checked
	for _, k := range f.Forks {
		for _, v := range [...]int16{k.Owner, k.RRefOn, k.ForkOn, k.Parent} {
			b = binary.LittleEndian.AppendUint16(b, uint16(v)) //nolint:gosec // two's complement
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(k.RRef)) //nolint:gosec // two's complement
		b = binary.LittleEndian.AppendUint64(b, uint64(k.Fork)) //nolint:gosec // two's complement
	}
	b = append(b, byte(len(f.Trace))) //nolint:gosec // checked
	return append(b, f.Trace...)
}

// Release gives the storages of a received frame back.
func (f *Frame) Release() {
	for _, s := range f.Storages {
		s.Release()
	}
}
