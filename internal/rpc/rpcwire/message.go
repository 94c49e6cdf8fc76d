// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
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
