// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
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
// with strings as length(4) and bytes. The answer to a Mark or Grad has no payload when all went well and it carries nothing, else
//
//	0 cause
//	1 messages(4), per message call-from(2) call(8) retain gradients(4), per gradient 1 or 0
//
// That to a Seen is one byte, whether the context is still there.
const goForm = 'C'

// maxText bounds the strings of a cause.
const maxText = 1 << 16

const headSize = 4 + 8 + 2 + 8 + 2 + 8 + 4

func encodeMessage(m message) *rpcwire.Message {
	b := make([]byte, 0, headSize+16)
	retain := byte(0)
	var grads []autograd.Value
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
	out := &rpcwire.Message{Type: rpcwire.BackwardAutogradReq}
	b = appendGradients(b, grads, out)
	if m.Kind == backwardcore.Fail {
		b = appendCause(b, m.Cause)
	}
	out.Payload = b
	return out
}

func badMessage(format string, args ...any) error {
	return cohort.Newf("distautograd: message", cohort.Protocol, format, args...)
}

func decodeMessage(in *rpcwire.Message) (m message, err error) {
	b := in.Payload
	if len(b) < headSize || b[0] != goForm {
		return m, badMessage("%d bytes are no message of a pass", len(b))
	}
	m.Kind, m.Mode = backwardcore.Kind(b[1]), backwardcore.Mode(b[2])
	retain := b[3] != 0
	//nolint:gosec // two's complement
	m.Context = ID(binary.BigEndian.Uint64(b[4:])).context()
	//nolint:gosec // two's complement
	m.Pass = backwardcore.PassID{Origin: backwardcore.Worker(binary.BigEndian.Uint16(b[12:])), N: binary.BigEndian.Uint64(b[14:])}
	//nolint:gosec // two's complement
	m.Call = backwardcore.Call{From: backwardcore.Worker(binary.BigEndian.Uint16(b[22:])), N: binary.BigEndian.Uint64(b[24:])}
	n := binary.BigEndian.Uint32(b[32:])
	b = b[headSize:]
	if m.Mode > backwardcore.Foreign || (m.Mode == backwardcore.Foreign) != (m.Pass == backwardcore.NoID) && m.Kind != backwardcore.Seen {
		return m, badMessage("mode %d with pass %v", m.Mode, m.Pass)
	}
	tensors := in.Tensors
	switch {
	case m.Kind == backwardcore.Grad:
		if m.Gradient, b, tensors, err = cutGradients(n, b, tensors); err != nil {
			return m, err
		}
		m.Gradient.retain = retain
	case n > 0:
		return m, badMessage("a message of kind %d with gradients", m.Kind)
	}
	if m.Kind == backwardcore.Fail {
		if m.Cause, b, err = cutCause(b); err != nil {
			return m, err
		}
	}
	if len(b) > 0 || len(tensors) > 0 {
		return m, badMessage("%d bytes and %d tensors too many", len(b), len(tensors))
	}
	return m, nil
}

// appendGradients appends the number of gradients, and which of them are there. Those are tensors of the message.
func appendGradients(b []byte, grads []autograd.Value, out *rpcwire.Message) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(grads))) //nolint:gosec // as many as a message has tensors
	for _, g := range grads {
		t := tensorOf(g)
		if t == nil {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		out.Tensors = append(out.Tensors, t)
	}
	return b
}

// tensorOf and valueOf translate between gradients and the tensors of messages, where nil means none.
func tensorOf(v autograd.Value) any {
	switch {
	case v.Dense != nil:
		return v.Dense
	case v.Sparse != nil:
		return v.Sparse
	}
	return nil
}

func valueOf(t any) (v autograd.Value, ok bool) {
	switch t := t.(type) {
	case *tensor.Tensor:
		return autograd.Value{Dense: t}, true
	case *tensor.Sparse:
		return autograd.Value{Sparse: t}, true
	}
	return v, false
}

// cutGradients reads n gradients behind their number.
func cutGradients(n uint32, b []byte, tensors []any) (g *gradient, rest []byte, others []any, err error) {
	if uint64(n) > uint64(len(b)) {
		return nil, nil, nil, badMessage("%d gradients in %d bytes", n, len(b))
	}
	g = &gradient{ts: make([]autograd.Value, n)}
	for i := range g.ts {
		if b[i] == 0 {
			continue
		}
		if len(tensors) == 0 {
			return nil, nil, nil, badMessage("%d gradients, and no tensor for number %d", n, i)
		}
		var ok bool
		if g.ts[i], ok = valueOf(tensors[0]); !ok {
			return nil, nil, nil, badMessage("gradient %d is a %T, no tensor", i, tensors[0])
		}
		tensors = tensors[1:]
	}
	return g, b[n:], tensors, nil
}

// encodeAnswer is the answer to a Mark or Grad.
func encodeAnswer(failed *backwardcore.Cause, all []carried) *rpcwire.Message {
	out := &rpcwire.Message{Type: rpcwire.BackwardAutogradResp}
	switch {
	case failed != nil:
		out.Payload = appendCause([]byte{0}, *failed)
	case len(all) > 0:
		b := binary.BigEndian.AppendUint32([]byte{1}, uint32(len(all))) //nolint:gosec // at most one per message of the forward pass
		for _, x := range all {
			b = binary.BigEndian.AppendUint16(b, uint16(x.Call.From)) //nolint:gosec // two's complement
			b = binary.BigEndian.AppendUint64(b, x.Call.N)
			g := x.Gradient
			if g == nil {
				g = &gradient{}
			}
			retain := byte(0)
			if g.retain {
				retain = 1
			}
			b = appendGradients(append(b, retain), g.ts, out)
		}
		out.Payload = b
	}
	return out
}

// decodeAnswer reads the answer to a Mark or Grad.
func decodeAnswer(kind backwardcore.Kind, in *rpcwire.Message) (failed *backwardcore.Cause, all []carried, err error) {
	if in == nil || len(in.Payload) == 0 {
		return nil, nil, nil
	}
	b, tensors := in.Payload[1:], in.Tensors
	switch {
	case in.Payload[0] == 0:
		failed = new(backwardcore.Cause)
		*failed, _, err = cutCause(b)
		return failed, nil, err
	case in.Payload[0] != 1 || len(b) < 4:
		return nil, nil, badMessage("%d bytes are no answer", len(in.Payload))
	}
	const fixed = 2 + 8 + 1 + 4
	n := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(n)*fixed > uint64(len(b)) {
		return nil, nil, badMessage("an answer with %d messages in %d bytes", n, len(b))
	}
	for range n {
		if len(b) < fixed {
			return nil, nil, badMessage("an answer that ends in a message")
		}
		//nolint:gosec // two's complement
		x := carried{Call: backwardcore.Call{From: backwardcore.Worker(binary.BigEndian.Uint16(b)), N: binary.BigEndian.Uint64(b[2:])}}
		retain, count := b[10] != 0, binary.BigEndian.Uint32(b[11:])
		if x.Gradient, b, tensors, err = cutGradients(count, b[fixed:], tensors); err != nil {
			return nil, nil, err
		}
		if x.Gradient.retain = retain; kind != backwardcore.Grad {
			x.Gradient = nil
		}
		all = append(all, x)
	}
	if len(b) > 0 || len(tensors) > 0 {
		return nil, nil, badMessage("%d bytes and %d tensors too many", len(b), len(tensors))
	}
	return nil, all, nil
}

func appendCause(b []byte, c backwardcore.Cause) []byte {
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

func cutCause(b []byte) (c backwardcore.Cause, rest []byte, err error) {
	if len(b) < 4 {
		return c, nil, badMessage("%d bytes are no cause", len(b))
	}
	c.Worker = backwardcore.Worker(binary.BigEndian.Uint16(b)) //nolint:gosec // two's complement
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
