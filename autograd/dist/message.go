// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"encoding/binary"

	fault "github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/backcore"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/tensor"
)

// Among Go workers the messages of a pass are BACKWARD_AUTOGRAD_REQ with a payload of its own, which begins with goForm; PyTorch's
// is a pickle, and begins with 0x80. All numbers are big-endian:
//
//	goForm kind mode retain context(8) pass-origin(2) pass(8) call-from(2) call(8) gradients(4), per gradient 1 or 0, cause
//
// where a gradient that is there is the next tensor of the message, and the cause, of a Fail alone, is
//
//	worker(2) code(1) died(1) function text
//
// with strings as length(4) and bytes. The answer has no payload, or the cause of a failure; that to a Seen is one byte, whether
// the context is still there.
const goForm = 'C'

// maxText bounds the strings of a cause.
const maxText = 1 << 16

const headSize = 4 + 8 + 2 + 8 + 2 + 8 + 4

func encodeMessage(m message) *rpcwire.Message {
	b := make([]byte, 0, headSize+16)
	retain := byte(0)
	var grads []*tensor.Tensor
	if m.Gradient != nil {
		grads = m.Gradient.ts
		if m.Gradient.retain {
			retain = 1
		}
	}
	b = append(b, goForm, byte(m.Kind), byte(m.Mode), retain)
	b = binary.BigEndian.AppendUint64(b, uint64(idOf(m.Context))) //nolint:gosec // two's complement
	b = binary.BigEndian.AppendUint16(b, uint16(m.Pass.Origin))   //nolint:gosec // two's complement
	b = binary.BigEndian.AppendUint64(b, m.Pass.N)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Call.From)) //nolint:gosec // two's complement
	b = binary.BigEndian.AppendUint64(b, m.Call.N)
	b = binary.BigEndian.AppendUint32(b, uint32(len(grads))) //nolint:gosec // as many as a message has tensors
	out := &rpcwire.Message{Type: rpcwire.BackwardAutogradReq}
	for _, g := range grads {
		if g == nil {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		out.Tensors = append(out.Tensors, g)
	}
	if m.Kind == backcore.Fail {
		b = appendCause(b, m.Cause)
	}
	out.Payload = b
	return out
}

func badMessage(format string, args ...any) error {
	return fault.Newf("autograd: message", fault.Protocol, format, args...)
}

func decodeMessage(in *rpcwire.Message) (m message, err error) {
	b := in.Payload
	if len(b) < headSize || b[0] != goForm {
		return m, badMessage("%d bytes are no message of a pass", len(b))
	}
	m.Kind, m.Mode = backcore.Kind(b[1]), backcore.Mode(b[2])
	retain := b[3] != 0
	m.Context = ID(binary.BigEndian.Uint64(b[4:])).context()                                                               //nolint:gosec // two's complement
	m.Pass = backcore.PassID{Origin: backcore.Worker(binary.BigEndian.Uint16(b[12:])), N: binary.BigEndian.Uint64(b[14:])} //nolint:gosec // two's complement
	m.Call = backcore.Call{From: backcore.Worker(binary.BigEndian.Uint16(b[22:])), N: binary.BigEndian.Uint64(b[24:])}     //nolint:gosec // two's complement
	n := binary.BigEndian.Uint32(b[32:])
	b = b[headSize:]
	if m.Mode > backcore.Foreign || (m.Mode == backcore.Foreign) != (m.Pass == backcore.NoID) && m.Kind != backcore.Seen {
		return m, badMessage("mode %d with pass %v", m.Mode, m.Pass)
	}
	if uint64(n) > uint64(len(b)) {
		return m, badMessage("%d gradients in %d bytes", n, len(b))
	}
	tensors := in.Tensors
	if m.Kind == backcore.Grad {
		m.Gradient = &gradient{ts: make([]*tensor.Tensor, n), retain: retain}
	} else if n > 0 {
		return m, badMessage("a message of kind %d with gradients", m.Kind)
	}
	for i := range int(n) {
		if b[i] == 0 {
			continue
		}
		if len(tensors) == 0 {
			return m, badMessage("%d gradients, and %d tensors", n, len(in.Tensors))
		}
		t, ok := tensors[0].(*tensor.Tensor)
		if !ok {
			return m, badMessage("gradient %d is a %T: gradients are dense tensors", i, tensors[0])
		}
		m.Gradient.ts[i], tensors = t, tensors[1:]
	}
	b = b[n:]
	if m.Kind == backcore.Fail {
		if m.Cause, b, err = cutCause(b); err != nil {
			return m, err
		}
	}
	if len(b) > 0 || len(tensors) > 0 {
		return m, badMessage("%d bytes and %d tensors too many", len(b), len(tensors))
	}
	return m, nil
}

func appendCause(b []byte, c backcore.Cause) []byte {
	died := byte(0)
	if c.Died {
		died = 1
	}
	b = binary.BigEndian.AppendUint16(b, uint16(c.Worker)) //nolint:gosec // two's complement
	b = append(b, byte(c.Code), died)                      //nolint:gosec // a code
	for _, s := range []string{c.Function, c.Text} {
		s = s[:min(len(s), maxText)]
		b = binary.BigEndian.AppendUint32(b, uint32(len(s))) //nolint:gosec // bounded
		b = append(b, s...)
	}
	return b
}

func cutCause(b []byte) (c backcore.Cause, rest []byte, err error) {
	if len(b) < 4 {
		return c, nil, badMessage("%d bytes are no cause", len(b))
	}
	c.Worker = backcore.Worker(binary.BigEndian.Uint16(b)) //nolint:gosec // two's complement
	c.Code, c.Died = int(b[2]), b[3] != 0
	b = b[4:]
	for _, s := range []*string{&c.Function, &c.Text} {
		if len(b) < 4 {
			return c, nil, badMessage("a text without a length")
		}
		n := binary.BigEndian.Uint32(b)
		if n > maxText || int64(n) > int64(len(b)-4) {
			return c, nil, badMessage("a text of %d bytes in %d", n, len(b)-4)
		}
		*s, b = string(b[4:4+n]), b[4+n:]
	}
	return c, b, nil
}
