// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensortable"
)

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
