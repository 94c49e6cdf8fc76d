// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"testing"

	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// BenchmarkCall is what a call of a function with a two-float tensor costs in codecs: caller and callee, one way.
func BenchmarkCall(b *testing.B) {
	x := tensor.Must(tensor.From([]float32{1, 2}, 2))
	u := UDF{Func: py.Func("bench.echo"), Args: []any{x}}
	b.Run("cohort", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			enc := &Encoder{}
			payload, err := enc.PythonCall(u, false)
			if err != nil {
				b.Fatal(err)
			}
			f, err := (&Message{Type: PythonCall, Payload: payload, Tensors: enc.Tensors}).Frame()
			if err != nil {
				b.Fatal(err)
			}
			m, err := DecodeFrame(arrived(f))
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := (&Decoder{Tensors: m.Tensors}).PythonCall(m.Payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tensorpipe", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			enc := &Encoder{}
			payload, err := enc.PythonCall(u, false)
			if err != nil {
				b.Fatal(err)
			}
			raw, err := (&Message{Type: PythonCall, Payload: payload, Tensors: enc.Tensors}).Encode()
			if err != nil {
				b.Fatal(err)
			}
			m, err := Decode(raw)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := (&Decoder{Tensors: m.Tensors}).PythonCall(m.Payload); err != nil {
				b.Fatal(err)
			}
		}
	})
}
