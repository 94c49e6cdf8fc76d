// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestSendBuffer: whatever is copied or referred to comes out in its order, in pieces of any size, and what is sent is not held any more.
func TestSendBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sendBuffer
		var want, got []byte
		next := byte(0)
		fresh := func(n int) []byte {
			next++
			want = append(want, bytes.Repeat([]byte{next}, n)...)
			return want[len(want)-n:]
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			size := rapid.IntRange(1, 40).Draw(t, "size")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				s.Buf = append(s.Buf, fresh(size)...)
			case 1:
				start := len(s.Buf)
				s.Buf = append(s.Buf, fresh(1)...)
				value := bytes.Clone(fresh(size))
				s.Refer(value, value)
				if n := s.ReferredSince(start); n != size {
					t.Fatalf("%d bytes were referred to, want %d", n, size)
				}
			default:
				all := bytes.Join(s.Pending(nil, size), nil)
				if len(all) != min(size, s.Owed()) {
					t.Fatalf("%d of %d bytes are pending up to %d", len(all), s.Owed(), size)
				}
				n := rapid.IntRange(0, len(all)).Draw(t, "sent")
				got = append(got, all[:n]...)
				if s.Shed(n); s.Owed() > 0 {
					s.Compact()
				}
			}
			if s.Owed() != len(want)-len(got) || s.Memory() < s.Owed() {
				t.Fatalf("%d bytes are owed and %d held, want %d", s.Owed(), s.Memory(), len(want)-len(got))
			}
		}
		got = append(got, bytes.Join(s.Pending(nil, s.Owed()), nil)...)
		if !bytes.Equal(got, want) {
			t.Fatalf("the stream is % x, want % x", got, want)
		}
		s.Shed(s.Owed())
		if s.Owed() != 0 || s.Memory() != cap(s.Buf) {
			t.Fatalf("%d bytes are owed and %d held when all is sent", s.Owed(), s.Memory())
		}
	})
}
