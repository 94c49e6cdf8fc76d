// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestInbox: frames of all sizes come out as they went in, however the bytes arrive.
func TestInbox(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		var want [][]byte
		var stream []byte
		for i := range 30 {
			size := []int{0, 10, 1000, 16 << 10, 40_000, 3 << 20}[random.IntN(6)]
			frame := wire.EndFrame(append(wire.BeginFrame(nil, uint32(i)), bytes.Repeat([]byte{byte(i)}, size+1)...), 0, 0)
			want = append(want, frame)
			stream = append(stream, frame...)
		}
		var in wire.Inbox
		for len(want) > 0 {
			frame, kept, err := in.Next(1 << 30)
			if err != nil {
				t.Fatal(err)
			}
			if frame == nil {
				space := in.Space()
				if len(space) == 0 || len(stream) == 0 {
					t.Fatalf("seed %d: %d bytes of space, %d to come", seed, len(space), len(stream))
				}
				n := copy(space[:random.IntN(len(space))+1], stream)
				in.Filled(n)
				stream = stream[n:]
				continue
			}
			if !bytes.Equal(frame, want[0]) || kept != (len(frame) > 16<<10) {
				t.Fatalf("seed %d: a frame of %d bytes, want %d; memory of its own: %v", seed, len(frame), len(want[0]), kept)
			}
			want = want[1:]
		}
	}
}

// TestInboxTakesNoMemoryForWords: a frame that is only announced takes little, and one over the limit is refused.
func TestInboxTakesNoMemoryForWords(t *testing.T) {
	head := []byte{0, 0, 0, 0x30, 1, 0, 0, 0} // 768 MiB
	var in wire.Inbox
	in.Filled(copy(in.Space(), head))
	if frame, _, err := in.Next(1 << 30); frame != nil || err != nil {
		t.Fatalf("%d bytes, %v", len(frame), err)
	}
	if n := len(in.Space()); n > 1<<20 {
		t.Errorf("%d bytes were taken for an announcement", n)
	}
	var small wire.Inbox
	small.Filled(copy(small.Space(), head))
	if _, _, err := small.Next(1 << 20); cohort.CodeOf(err) != cohort.TooLarge {
		t.Errorf("a frame over the limit: %v", err)
	}
}
