// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// TestOutputIsOneStream: replies of all sizes, small ones that are copied and large ones that are referred to, reach a client
// that reads in random pieces as they were when they were asked for, whatever becomes of the keys meanwhile.
func TestOutputIsOneStream(t *testing.T) {
	sizes := []int{0, 1, 100, sharedSize - 1, sharedSize, sharedSize + 1, 3 * sharedSize, 100_000}
	for seed := range seeds.Range(15) {
		random := rand.New(rand.NewPCG(seed, 1))
		d := []wire.Dialect{wire.V, wire.Native}[seed%2]
		limits := testLimits
		limits.Output = 1 << 30
		b := newBench(limits)
		reader, writer := b.dial(d), b.dial(wire.V)
		values := map[string][]byte{}
		var want, got []byte
		id := uint32(0)
		ask := func(write func([]byte) []byte, body []byte) {
			if d == wire.V {
				b.m.Receive(reader, write(nil))
				want = append(want, body...)
				return
			}
			id++
			b.m.Receive(reader, frame(id, write))
			want = append(want, reply(id, 0, body)...)
		}
		take := func() {
			if reader.Owed() != len(want)-len(got) {
				t.Fatalf("seed %d: %d bytes are owed, want %d", seed, reader.Owed(), len(want)-len(got))
			}
			pieces := reader.Pending(nil, random.IntN(300_000)+1)
			all := bytes.Join(pieces, nil)
			for _, p := range pieces {
				if len(p) == 0 {
					t.Fatalf("seed %d: an empty piece", seed)
				}
			}
			n := len(all)
			if n > 0 && random.IntN(2) == 0 {
				n = random.IntN(n) + 1 // the socket takes a part
			}
			got = append(got, all[:n]...)
			b.m.Sent(reader, n)
		}
		for range 200 {
			key := fmt.Sprint("/", random.IntN(4))
			switch random.IntN(6) {
			case 0, 1:
				values[key] = bytes.Repeat([]byte{byte(random.IntN(256))}, sizes[random.IntN(len(sizes))])
				b.m.Receive(writer, wire.AppendSet(nil, wire.V, key, values[key]))
			case 2:
				more := bytes.Repeat([]byte{'+'}, random.IntN(200))
				values[key] = append(bytes.Clone(values[key]), more...)
				b.m.Receive(writer, wire.AppendKeyValue(nil, wire.V, wire.Append, key, more))
			case 3:
				if values[key] != nil && reader.Owed() <= b.m.high() {
					ask(func(b []byte) []byte { return wire.AppendKey(b, d, wire.Get, key) }, wire.AppendBytes(nil, values[key]))
				}
			case 4:
				if values["/0"] != nil && values["/1"] != nil && reader.Owed() <= b.m.high() {
					ask(func(b []byte) []byte { return wire.AppendKeys(b, d, wire.MultiGet, "/0", "/1", "/0") },
						wire.AppendBytes(wire.AppendBytes(wire.AppendBytes(nil, values["/0"]), values["/1"]), values["/0"]))
				}
			case 5:
				take()
			}
			if b.m.admission.out != int64(reader.out.Memory()+writer.out.Memory()) {
				t.Fatalf("seed %d: %d bytes of output are counted, %d are held", seed, b.m.admission.out,
					reader.out.Memory()+writer.out.Memory())
			}
		}
		for reader.Owed() > 0 {
			take()
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d bytes differ from what was asked for, %d bytes", seed, len(got), len(want))
		}
		if b.m.admission.out > 2*keepBuffer || reader.out.Memory() > keepBuffer {
			t.Errorf("seed %d: %d bytes are counted when all is sent", seed, b.m.admission.out)
		}
	}
}

// TestReplacedValueCounts: a value that a reply refers to counts until it is sent, also when its key has another one or is
// gone, and when the client is.
func TestReplacedValueCounts(t *testing.T) {
	const size = 1 << 20
	for _, end := range []string{"sent", "closed"} {
		b := newBench(testLimits)
		reader, writer := b.dial(wire.V), b.dial(wire.V)
		set := func(n int) { b.m.Receive(writer, wire.AppendSet(nil, wire.V, "/k", make([]byte, n))) }
		set(size)
		b.m.Receive(reader, wire.AppendKey(nil, wire.V, wire.Get, "/k"))
		if m := b.m.memory(); m < 2*size {
			t.Errorf("%d bytes while the value and a reply that refers to it are there", m)
		}
		set(2 * size)
		if m := b.m.memory(); m < 3*size {
			t.Errorf("%d bytes while an old value is not sent yet", m)
		}
		b.m.Receive(writer, wire.AppendKey(nil, wire.V, wire.DeleteKey, "/k"))
		if m := b.m.memory(); m < size || m > size+size/4 {
			t.Errorf("%d bytes while a value whose key is gone is not sent yet", m)
		}
		b.m.Sent(reader, size/2)
		if m := b.m.memory(); m < size {
			t.Errorf("%d bytes while a part of it is not sent yet: all of it is held", m)
		}
		if end == "sent" {
			b.m.Sent(reader, reader.Owed())
		} else {
			b.m.Close(reader)
		}
		if m := b.m.memory(); m > size/16 {
			t.Errorf("%s: %d bytes are left", end, m)
		}
	}
}

// TestLargeRepliesAreNotCopied: what a step does for a reply does not depend on the size of the value.
func TestLargeRepliesAreNotCopied(t *testing.T) {
	b := newBench(testLimits)
	c := b.dial(wire.Native)
	b.send(c, frame(1, func(b []byte) []byte { return wire.AppendSet(b, wire.Native, "/k", make([]byte, 8<<20)) }))
	before := b.m.Work()
	b.m.Receive(c, frame(2, func(b []byte) []byte { return wire.AppendKey(b, wire.Native, wire.Get, "/k") }))
	if work := b.m.Work() - before; work > 8 {
		t.Errorf("a get of 8 MiB took %d units of work", work)
	}
	allocated := testing.AllocsPerRun(10, func() {
		b.m.Sent(c, c.Owed())
		b.m.Receive(c, frame(2, func(b []byte) []byte { return wire.AppendKey(b, wire.Native, wire.Get, "/k") }))
	})
	if allocated > 4 { // two are those of the test's request
		t.Errorf("%v allocations", allocated)
	}
	if got := pending(c); len(got) != 8<<20+8+wire.FrameHeader+1 || len(c.Pending(nil, math.MaxInt)) != 2 {
		t.Errorf("%d bytes", len(got))
	}
}
