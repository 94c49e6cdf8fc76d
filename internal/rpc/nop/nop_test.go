// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nop

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
)

func TestIntegersKeepTheirValueAndShortestForm(t *testing.T) {
	for _, c := range []struct {
		value uint64
		want  []byte
	}{
		{0, []byte{0}},
		{127, []byte{127}},
		{128, []byte{0x80, 128}},
		{255, []byte{0x80, 255}},
		{256, []byte{0x81, 0, 1}},
		{65536, []byte{0x82, 0, 0, 1, 0}},
		{1 << 32, []byte{0x83, 0, 0, 0, 0, 1, 0, 0, 0}},
	} {
		if got := AppendUint(nil, c.value); !bytes.Equal(got, c.want) {
			t.Errorf("AppendUint(%d) = %x, want %x", c.value, got, c.want)
		}
	}
	for _, v := range []int64{0, 127, 128, -1, -64, -65, -128, -129, math.MaxInt16 + 1, math.MinInt32, math.MaxInt64, math.MinInt64} {
		r := NewReader(AppendInt(nil, v))
		if got := r.Int(64); got != v || r.Close() != nil {
			t.Errorf("Int round trip of %d = %d, %v", v, got, r.Err())
		}
	}
}

func TestDecoderIsStrict(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		read func(r *Reader)
	}{
		"too wide":         {[]byte{0x82, 0, 0, 0, 0}, func(r *Reader) { r.Uint(16) }},
		"signed for uns.":  {[]byte{0x84, 1}, func(r *Reader) { r.Uint(64) }},
		"unsigned for s.":  {[]byte{0x80, 200}, func(r *Reader) { r.Int(64) }},
		"early end":        {[]byte{0x81, 0}, func(r *Reader) { r.Uint(64) }},
		"nothing":          {nil, func(r *Reader) { r.Uint(64) }},
		"left over":        {[]byte{1, 2}, func(r *Reader) { r.Uint(64) }},
		"huge string":      {[]byte{0xbd, 0x83, 255, 255, 255, 255, 255, 255, 255, 255}, func(r *Reader) { r.String(1 << 20) }},
		"long string":      {AppendString(nil, "hello"), func(r *Reader) { r.String(4) }},
		"fields":           {[]byte{0xb9, 3}, func(r *Reader) { r.Struct(2) }},
		"huge array":       {[]byte{0xba, 0x83, 0, 0, 0, 0, 0, 0, 0, 64}, func(r *Reader) { r.Array(1 << 30) }},
		"variant":          {[]byte{0xb8, 2}, func(r *Reader) { r.Variant(2) }},
		"negative variant": {[]byte{0xb8, 0xff}, func(r *Reader) { r.Variant(2) }},
		"ragged vector":    {[]byte{0xbc, 7, 0, 0, 0, 0, 0, 0, 0}, func(r *Reader) { r.Uint64s(8) }},
	} {
		r := NewReader(c.data)
		c.read(r)
		if err := r.Close(); !errors.Is(err, cohort.Protocol) {
			t.Errorf("%s: error %v, want a protocol error", name, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.Uint64().Draw(t, "u")
		i := rapid.Int64().Draw(t, "i")
		s := rapid.String().Draw(t, "s")
		v := rapid.SliceOf(rapid.Uint64()).Draw(t, "v")
		b := AppendStruct(nil, 5)
		b = AppendUint(b, u)
		b = AppendInt(b, i)
		b = AppendString(b, s)
		b = AppendUint64s(b, v)
		b = AppendEmpty(b)
		r := NewReader(b)
		r.Struct(5)
		if got := r.Uint(64); got != u {
			t.Fatalf("uint %d, want %d", got, u)
		}
		if got := r.Int(64); got != i {
			t.Fatalf("int %d, want %d", got, i)
		}
		if got := r.String(1 << 20); got != s {
			t.Fatalf("string %q, want %q", got, s)
		}
		if diff := cmp.Diff(append([]uint64{}, v...), r.Uint64s(1<<20)); diff != "" {
			t.Fatal(diff)
		}
		if !r.Empty() || r.Close() != nil {
			t.Fatalf("optional: %v", r.Err())
		}
	})
}

// FuzzReader drives the reader by the input itself: nothing may panic or read beyond the data.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0xb9, 2, 0xbd, 3, 'c', 'p', 'u', 0})
	f.Add([]byte{0xb8, 1, 0xb9, 1, 0x80, 200})
	f.Add([]byte{0xbc, 8, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		for start := range min(len(data), 16) {
			r := NewReader(data[start:])
			for r.Err() == nil && r.pos < len(r.data) {
				switch r.data[r.pos] {
				case variant:
					r.Variant(4)
				case structure:
					r.Struct(2)
				case array:
					r.Array(1 << 20)
				case mapping:
					r.Map(1 << 20)
				case binaryVector:
					r.Uint64s(1 << 20)
				case text:
					_ = r.String(1 << 20)
				case empty:
					r.Empty()
				case prefixI8, prefixI16, prefixI32, prefixI64:
					r.Int(64)
				default:
					r.Uint(64)
				}
			}
			_ = r.Close()
		}
	})
}
