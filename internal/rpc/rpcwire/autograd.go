// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Autograd is what a FORWARD_AUTOGRAD message adds to the message inside it.
type Autograd struct {
	Inner     Type
	ContextID int64
	MessageID int64
	From      WorkerID
	// DeviceMap is empty without CUDA.
	DeviceMap [][2]string
	// Compact says that the wrapper has the form for Go workers, which have no devices.
	Compact bool
}

// wrap appends a trailer and its length, which is big-endian, to an inner payload.
func wrap(inner []byte, j *pickle.JIT) ([]byte, error) {
	trailer, err := j.Finish()
	if err != nil {
		return nil, err
	}
	out := append(append(make([]byte, 0, len(inner)+len(trailer)+8), inner...), trailer...)
	return binary.BigEndian.AppendUint64(out, uint64(len(trailer))), nil
}

// unwrap splits a payload into inner payload and the items of its trailer.
func unwrap(payload []byte) (inner []byte, items []any, err error) {
	inner, trailer, err := cutTrailer(payload)
	if err == nil {
		items, err = jitTuple(trailer, -1)
	}
	return inner, items, err
}

// cutTrailer splits a payload into inner payload and trailer.
func cutTrailer(payload []byte) (inner, trailer []byte, err error) {
	if len(payload) < 8 {
		return nil, nil, badPayload("a wrapped message of %d bytes", len(payload))
	}
	body := payload[:len(payload)-8]
	n := binary.BigEndian.Uint64(payload[len(body):])
	if n > uint64(len(body)) {
		return nil, nil, badPayload("a wrapper of %d bytes in a message of %d", n, len(body))
	}
	cut := len(body) - int(n) //nolint:gosec // at most len(body)
	return body[:cut:cut], body[cut:], nil
}

func innerType(v any) (Type, bool) {
	n, ok := v.(int64)
	return Type(n), ok && n >= 0 && n <= 0xffff && Type(n).Known() //nolint:gosec // checked
}

// Wrap returns the payload of a FORWARD_AUTOGRAD message around an inner payload.
func (a Autograd) Wrap(inner []byte) ([]byte, error) {
	if a.Compact {
		return a.wrapCompact(inner), nil
	}
	j := pickle.NewJIT(nil)
	j.Mark()
	j.Int(int64(a.Inner))
	j.Int(a.ContextID)
	j.Int(a.MessageID)
	j.Int(int64(a.From))
	j.StringDict(a.DeviceMap)
	j.Tuple()
	return wrap(inner, j)
}

// The trailer among Go workers, big-endian: compactTrailer inner(2) context(8) message(8) from(2). A pickle begins with 0x80. Every
// call and every answer has one, and to write and read a pickle takes longer than all else that is done about it.
const (
	compactTrailer = 'C'
	compactLength  = 1 + 2 + 8 + 8 + 2
)

func (a Autograd) wrapCompact(inner []byte) []byte {
	out := append(append(make([]byte, 0, len(inner)+compactLength+8), inner...), compactTrailer)
	out = binary.BigEndian.AppendUint16(out, uint16(a.Inner))
	out = binary.BigEndian.AppendUint64(out, uint64(a.ContextID)) //nolint:gosec // two's complement
	out = binary.BigEndian.AppendUint64(out, uint64(a.MessageID)) //nolint:gosec // two's complement
	out = binary.BigEndian.AppendUint16(out, uint16(a.From))      //nolint:gosec // two's complement
	return binary.BigEndian.AppendUint64(out, compactLength)
}

func unwrapCompact(b []byte) (a Autograd, err error) {
	a.Compact, a.Inner = true, Type(binary.BigEndian.Uint16(b[1:]))
	if !a.Inner.Known() {
		return a, badPayload("an autograd wrapper around type %d", a.Inner)
	}
	a.ContextID = int64(binary.BigEndian.Uint64(b[3:]))                 //nolint:gosec // two's complement
	a.MessageID = int64(binary.BigEndian.Uint64(b[11:]))                //nolint:gosec // two's complement
	if a.From = WorkerID(binary.BigEndian.Uint16(b[19:])); a.From < 0 { //nolint:gosec // two's complement
		return a, badPayload("an autograd wrapper of worker %d", a.From)
	}
	return a, nil
}

// UnwrapAutograd splits the payload of a FORWARD_AUTOGRAD message.
func UnwrapAutograd(payload []byte) (a Autograd, inner []byte, err error) {
	inner, trailer, err := cutTrailer(payload)
	if err != nil {
		return a, nil, err
	}
	if len(trailer) == compactLength && trailer[0] == compactTrailer {
		a, err = unwrapCompact(trailer)
		return a, inner, err
	}
	items, err := jitTuple(trailer, -1)
	if err != nil {
		return a, nil, err
	}
	if len(items) != 5 {
		return a, nil, badPayload("an autograd wrapper of %d parts", len(items))
	}
	var ok [4]bool
	a.Inner, ok[0] = innerType(items[0])
	a.ContextID, ok[1] = items[1].(int64)
	a.MessageID, ok[2] = items[2].(int64)
	a.From, ok[3] = parseWorkerID(items[3])
	raw, _ := pickle.Untag(items[4])
	devices, isDict := raw.(*pickle.Dict)
	if !ok[0] || !ok[1] || !ok[2] || !ok[3] || !isDict {
		return a, nil, badPayload("an autograd wrapper whose parts have the wrong types")
	}
	for _, p := range devices.Pairs {
		from, ok1 := p.Key.(string)
		to, ok2 := p.Value.(string)
		if !ok1 || !ok2 {
			return a, nil, badPayload("a device map that is not made of strings")
		}
		a.DeviceMap = append(a.DeviceMap, [2]string{from, to})
	}
	return a, inner, nil
}

// Backward is the payload of a BACKWARD_AUTOGRAD_REQ: one gradient per tensor of a message.
type Backward struct {
	Gradients   []any // tensors
	ContextID   int64
	MessageID   int64
	RetainGraph bool
}

// Backward returns the payload of a BACKWARD_AUTOGRAD_REQ. The gradients are in e.Tensors afterwards.
func (e *Encoder) Backward(b Backward) ([]byte, error) {
	j := pickle.NewJIT(make([]byte, 0, 128))
	items := append(append(py.Tuple{}, b.Gradients...), b.ContextID, b.MessageID, b.RetainGraph)
	if err := e.jitTuple(j, items, 0); err != nil {
		return nil, err
	}
	return j.Finish()
}

// Backward reads the payload of a BACKWARD_AUTOGRAD_REQ.
func (d *Decoder) Backward(payload []byte) (Backward, error) {
	items, err := jitTuple(payload, -1)
	if err != nil {
		return Backward{}, err
	}
	if len(items) < 3 {
		return Backward{}, badPayload("a backward request of %d parts", len(items))
	}
	tail := items[len(items)-3:]
	var b Backward
	var ok1, ok2, ok3 bool
	b.ContextID, ok1 = tail[0].(int64)
	b.MessageID, ok2 = tail[1].(int64)
	b.RetainGraph, ok3 = tail[2].(bool)
	if !ok1 || !ok2 || !ok3 {
		return Backward{}, badPayload("a backward request whose parts have the wrong types")
	}
	b.Gradients, err = d.jitItems(items[:len(items)-3])
	return b, err
}

// EncodeCleanup returns the payload of a CLEANUP_AUTOGRAD_CONTEXT_REQ: the context id alone.
func EncodeCleanup(contextID int64) ([]byte, error) {
	j := pickle.NewJIT(nil)
	j.Int(contextID)
	return j.Finish()
}

// DecodeCleanup reads the payload of a CLEANUP_AUTOGRAD_CONTEXT_REQ.
func DecodeCleanup(payload []byte) (contextID int64, err error) {
	v, err := jitDecode(payload)
	if err != nil {
		return 0, err
	}
	id, ok := v.(int64)
	if !ok {
		return 0, badPayload("a %s where a context id is expected", pickle.TypeName(v))
	}
	return id, nil
}

// RRefBackward is the payload of a RREF_BACKWARD_REQ.
type RRefBackward struct {
	RRef        GlobalID
	ContextID   int64
	RetainGraph bool
}

// Encode returns the payload.
func (b RRefBackward) Encode() ([]byte, error) {
	j := pickle.NewJIT(nil)
	b.RRef.push(j)
	j.Put()
	j.Int(b.ContextID)
	j.Bool(b.RetainGraph)
	j.TupleOf(3)
	return j.Finish()
}

// DecodeRRefBackward reads the payload of a RREF_BACKWARD_REQ.
func DecodeRRefBackward(payload []byte) (RRefBackward, error) {
	items, err := jitTuple(payload, 3)
	if err != nil {
		return RRefBackward{}, err
	}
	var b RRefBackward
	var ok1, ok2, ok3 bool
	b.RRef, ok1 = parseGlobalID(items[0])
	b.ContextID, ok2 = items[1].(int64)
	b.RetainGraph, ok3 = items[2].(bool)
	if !ok1 || !ok2 || !ok3 {
		return RRefBackward{}, badPayload("a backward request whose parts have the wrong types")
	}
	return b, nil
}

// errorClass is what PyTorch's EXCEPTION text may carry in its prefix.
type errorClass int

// The classes that PyTorch knows.
const (
	ErrorUnknown  errorClass = 0
	ErrorTimeout  errorClass = 1
	errorInjected errorClass = 2
)

const errorPrefix = "RPCErr:"

// EncodeException returns the payload of an EXCEPTION. A text of ours never carries the prefix by accident.
func EncodeException(class errorClass, text string) []byte {
	if class == ErrorUnknown && !strings.HasPrefix(text, errorPrefix) {
		return []byte(text)
	}
	return []byte(errorPrefix + strconv.Itoa(int(class)) + ":" + text)
}

// DecodeException reads the payload of an EXCEPTION.
func DecodeException(payload []byte) (errorClass, string) {
	text := string(payload)
	rest, ok := strings.CutPrefix(text, errorPrefix)
	if !ok {
		return ErrorUnknown, text
	}
	number, rest, ok := strings.Cut(rest, ":")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 {
		return ErrorUnknown, text
	}
	return errorClass(n), rest
}

// ExceptionError turns an EXCEPTION into the error of the call it answers.
func ExceptionError(op, peer string, payload []byte) *cohort.Error {
	class, text := DecodeException(payload)
	code := cohort.Remote
	if class == ErrorTimeout {
		code = cohort.DeadlineExceeded
	}
	e := cohort.New(op, code, text)
	e.Peer = peer
	return e
}
