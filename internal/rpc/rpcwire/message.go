// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"encoding/binary"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/rpc/tensortable"
)

// Message is an RPC message: its type, the id that ties an answer to its request, a payload whose form the type
// decides, and the tensors that the payload refers to by number.
type Message struct {
	Type    Type
	ID      int64
	Payload []byte
	// Tensors are *tensor.Tensor and *Sparse values.
	Tensors []any
	// Holders are values of the program that stand for some of the tensors.
	Holders []any
	// Written, when not nil, is called once the message has been written and the tensors' memory is not needed any more.
	Written func()
}

// Encode lays the message out for a TensorPipe pipe.
func (m *Message) Encode() (*tensorpipe.Message, error) {
	if !m.Type.Known() {
		return nil, cohort.Newf("rpc: encode", cohort.Internal, "unknown message %v", m.Type)
	}
	table, storages, err := tensortable.Encode(m.Tensors)
	if err != nil {
		return nil, err
	}
	head := binary.LittleEndian.AppendUint32(make([]byte, 0, 12), uint32(m.Type))
	head = binary.LittleEndian.AppendUint64(head, uint64(m.ID)) //nolint:gosec // two's complement
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	return &tensorpipe.Message{Payloads: [][]byte{head[:4:4], head[4:], payload, table}, Storages: storages}, nil
}

// DecodeHead returns type and id of a message from a pipe, which an answer needs even when the rest cannot be read.
func DecodeHead(raw *tensorpipe.Message) (Type, int64, error) {
	if len(raw.Payloads) != tensorpipe.RPCPayloads || len(raw.Payloads[0]) != 4 || len(raw.Payloads[1]) != 8 {
		return 0, 0, cohort.New("rpc: decode", cohort.Protocol, "not an RPC message: want type, id, payload and tensor table")
	}
	kind := binary.LittleEndian.Uint32(raw.Payloads[0])
	id := int64(binary.LittleEndian.Uint64(raw.Payloads[1])) //nolint:gosec // two's complement
	if kind > 0xffff || !Type(kind).Known() {
		return Type(kind & 0xffff), id, cohort.Newf("rpc: decode", cohort.Protocol, "unknown message type %#x", kind)
	}
	return Type(kind), id, nil
}

// Decode reads a message from a pipe. The tensors use the storages of raw, without a copy.
func Decode(raw *tensorpipe.Message) (*Message, error) {
	kind, id, err := DecodeHead(raw)
	if err != nil {
		return nil, err
	}
	m := &Message{Type: kind, ID: id, Payload: raw.Payloads[2]}
	if m.Tensors, err = tensortable.Decode(raw.Payloads[3], raw.Storages); err != nil {
		return nil, err
	}
	return m, nil
}

// Type is the kind of an RPC message, with PyTorch's numbers.
type Type uint16

// The message types.
const (
	ScriptCall              Type = 0x100
	ScriptRet               Type = 0x201
	PythonCall              Type = 0x102
	PythonRet               Type = 0x203
	ScriptRemoteCall        Type = 0x104
	PythonRemoteCall        Type = 0x105
	RemoteRet               Type = 0x206
	ScriptRRefFetchCall     Type = 0x107
	PythonRRefFetchCall     Type = 0x108
	ScriptRRefFetchRet      Type = 0x209
	PythonRRefFetchRet      Type = 0x20a
	RRefUserDelete          Type = 0x10b
	RRefForkRequest         Type = 0x10c
	RRefChildAccept         Type = 0x10d
	RRefAck                 Type = 0x20e
	ForwardAutogradReq      Type = 0x10f
	ForwardAutogradResp     Type = 0x210
	BackwardAutogradReq     Type = 0x111
	BackwardAutogradResp    Type = 0x212
	CleanupAutogradReq      Type = 0x113
	CleanupAutogradResp     Type = 0x214
	RunWithProfilingReq     Type = 0x115
	RunWithProfilingResp    Type = 0x216
	RRefBackwardReq         Type = 0x117
	RRefBackwardResp        Type = 0x218
	Exception               Type = 0x237
	requestBit, responseBit      = 0x100, 0x200
)

var typeNames = map[Type]string{
	ScriptCall: "SCRIPT_CALL", ScriptRet: "SCRIPT_RET", PythonCall: "PYTHON_CALL", PythonRet: "PYTHON_RET",
	ScriptRemoteCall: "SCRIPT_REMOTE_CALL", PythonRemoteCall: "PYTHON_REMOTE_CALL", RemoteRet: "REMOTE_RET",
	ScriptRRefFetchCall: "SCRIPT_RREF_FETCH_CALL", PythonRRefFetchCall: "PYTHON_RREF_FETCH_CALL",
	ScriptRRefFetchRet: "SCRIPT_RREF_FETCH_RET", PythonRRefFetchRet: "PYTHON_RREF_FETCH_RET",
	RRefUserDelete: "RREF_USER_DELETE", RRefForkRequest: "RREF_FORK_REQUEST", RRefChildAccept: "RREF_CHILD_ACCEPT",
	RRefAck: "RREF_ACK", ForwardAutogradReq: "FORWARD_AUTOGRAD_REQ", ForwardAutogradResp: "FORWARD_AUTOGRAD_RESP",
	BackwardAutogradReq: "BACKWARD_AUTOGRAD_REQ", BackwardAutogradResp: "BACKWARD_AUTOGRAD_RESP",
	CleanupAutogradReq: "CLEANUP_AUTOGRAD_CONTEXT_REQ", CleanupAutogradResp: "CLEANUP_AUTOGRAD_CONTEXT_RESP",
	RunWithProfilingReq: "RUN_WITH_PROFILING_REQ", RunWithProfilingResp: "RUN_WITH_PROFILING_RESP",
	RRefBackwardReq: "RREF_BACKWARD_REQ", RRefBackwardResp: "RREF_BACKWARD_RESP", Exception: "EXCEPTION",
}

// Known reports whether t is one of the types above.
func (t Type) Known() bool { return typeNames[t] != "" }

// IsRequest reports whether t asks for an answer.
func (t Type) IsRequest() bool { return t&requestBit != 0 }

// IsResponse reports whether t is an answer.
func (t Type) IsResponse() bool { return t&responseBit != 0 }

// String returns PyTorch's name of the type.
func (t Type) String() string {
	if name := typeNames[t]; name != "" {
		return name
	}
	return "type " + strconv.FormatUint(uint64(t), 16)
}

// On the cohort transport the payload of a frame is the table of the tensors and the message's payload.

// Frame lays the message out for the cohort transport. The id is the link's to choose for requests.
func (m *Message) Frame() (*cohortwire.Frame, error) {
	f := &cohortwire.Frame{}
	return f, m.ToFrame(f)
}

// ToFrame is [Message.Frame] into a frame of the caller.
func (m *Message) ToFrame(f *cohortwire.Frame) error {
	f.Type, f.ID = cohortwire.Type(m.Type), uint64(m.ID) //nolint:gosec // two's complement
	f.Payload, f.Written = m.Payload, m.Written
	var err error
	f.Prefix, f.Storages, err = tensortable.EncodeShort(m.Tensors)
	return err
}

// DecodeFrame reads a message from the cohort transport. The tensors use the storages of the frame, without a copy.
func DecodeFrame(f *cohortwire.Frame) (*Message, error) {
	room := &struct {
		Message
		tensors [1]any
	}{}
	room.Tensors = room.tensors[:0]
	if err := room.FromFrame(f); err != nil {
		return nil, err
	}
	return &room.Message, nil
}

// FromFrame is [DecodeFrame] into a message that has room for its tensors, or none.
func (m *Message) FromFrame(f *cohortwire.Frame) error {
	m.Type, m.ID = Type(f.Type), int64(f.ID) //nolint:gosec // two's complement
	var err error
	m.Tensors, m.Payload, err = tensortable.DecodeShort(f.Payload, f.Storages, m.Tensors)
	return err
}
