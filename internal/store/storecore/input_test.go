// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// TestTakeIsReceive: a machine that is given buffers, in which requests begin and end anywhere, does what one does that gets
// each request by itself, and counts the memory that it has.
func TestTakeIsReceive(t *testing.T) {
	sizes := []int{0, 10, 1000, sharedSize, sharedSize + 1, 2 * sharedSize, 5 * sharedSize, 70_000}
	for seed := range seeds.Range(20) {
		random := rand.New(rand.NewPCG(seed, 2))
		d := []wire.Dialect{wire.Legacy, wire.V, wire.Native}[seed%3]
		limits := testLimits
		limits.Output = 1 << 30
		one, other := newBench(limits), newBench(limits)
		a, b := one.dial(d), other.dial(d)
		id := uint32(0)
		request := func() []byte {
			key := fmt.Sprint("/", random.IntN(3))
			value := bytes.Repeat([]byte{byte(random.IntN(256))}, sizes[random.IntN(len(sizes))])
			write := func(b []byte) []byte {
				switch random.IntN(5) {
				case 0:
					return wire.AppendKey(b, d, wire.Get, key)
				case 1:
					return wire.AppendAdd(b, d, "/n", 1)
				case 2:
					if d != wire.Legacy {
						return wire.AppendKeyValue(b, d, wire.Append, key, value[:min(len(value), 500)])
					}
				case 3:
					return wire.AppendCompareSet(b, d, key, nil, value)
				}
				return wire.AppendSet(b, d, key, value)
			}
			if d != wire.Native {
				return write(nil)
			}
			id++
			return frame(id, write)
		}
		for range 20 {
			var stream []byte
			for range random.IntN(6) + 1 {
				r := request()
				one.send(a, bytes.Clone(r))
				stream = append(stream, r...)
			}
			for len(stream) > 0 {
				n := min(len(stream), random.IntN(90_000)+1)
				if have, size := other.m.Rest(b); size > 0 && random.IntN(4) > 0 {
					n = min(n, size-len(have))
					if size > cap(have) {
						have = append(make([]byte, 0, size), have...)
					}
					other.m.Extend(b, append(have, stream[:n]...))
					other.flush()
					stream = stream[n:]
					continue
				}
				part := append(make([]byte, 0, n), stream[:n]...)
				if random.IntN(4) > 0 {
					other.m.Take(b, part, cap(part))
				} else {
					other.m.Receive(b, part)
					clear(part) // it is not kept
				}
				other.flush()
				stream = stream[n:]
			}
			if want, got := one.take(a), other.take(b); want != got {
				t.Fatalf("seed %d: %d bytes of answers, want %d", seed, len(got), len(want))
			}
			held := int64(0)
			walk := other.m.table.Walk(nil)
			for !walk.Done() {
				if e, _, ok := walk.Next(); ok {
					held += int64(cap(e.Data())) + keytable.EntryCost
				}
			}
			walk.End()
			if held != other.m.table.Bytes() || other.m.admission.in != int64(cap(b.in.buf)+b.in.lent) {
				t.Fatalf("seed %d: %d bytes of keys and values are counted, %d held; %d of requests, %d held",
					seed, other.m.table.Bytes(), held, other.m.admission.in, cap(b.in.buf))
			}
		}
		for key := range 3 {
			name := []byte(fmt.Sprint("/", key))
			e, f := one.m.table.Find(name), other.m.table.Find(name)
			if (e == nil) != (f == nil) || e != nil && !bytes.Equal(e.Data(), f.Data()) {
				t.Fatalf("seed %d: the values of %s differ", seed, name)
			}
		}
	}
}

// TestLargeSetIsNotCopied: a value that fills a buffer is stored with it, and the requests behind it are served, also one that
// makes the value longer.
func TestLargeSetIsNotCopied(t *testing.T) {
	for _, d := range []wire.Dialect{wire.V, wire.Native} {
		value, more := bytes.Repeat([]byte("v"), 1<<20), bytes.Repeat([]byte("+"), 20)
		var stream []byte
		put := func(id uint32, write func([]byte) []byte) int {
			if d == wire.Native {
				stream = append(stream, frame(id, write)...)
			} else {
				stream = write(stream)
			}
			return len(stream)
		}
		end := put(1, func(b []byte) []byte { return wire.AppendSet(b, d, "/key", value) })
		put(2, func(b []byte) []byte { return wire.AppendPing(b, d, 7) })
		put(3, func(b []byte) []byte { return wire.AppendKeyValue(b, d, wire.Append, "/key", more) })
		put(4, func(b []byte) []byte { return wire.AppendPing(b, d, 8) })
		for _, first := range []int{len(stream), end, 50_000} { // at once, and in two pieces
			b := newBench(testLimits)
			c := b.dial(d)
			part := append(make([]byte, 0, first), stream[:first]...)
			before := b.m.Work()
			b.m.Take(c, part, cap(part))
			if work := b.m.Work() - before; work > 16 {
				t.Errorf("%v: %d units of work", d, work)
			}
			if e := b.m.table.Find([]byte("/key")); first == end && &e.Value()[0] != &part[end-len(value)] {
				t.Errorf("%v: the value was copied", d)
			}
			b.m.Receive(c, stream[first:])
			if e := b.m.table.Find([]byte("/key")); !bytes.Equal(e.Value(), append(bytes.Clone(value), more...)) {
				t.Errorf("%v: another value", d)
			}
			b.flush()
			if got := b.take(c); !strings.Contains(got, "\x07\x00\x00\x00") || !strings.HasSuffix(got, "\x08\x00\x00\x00") {
				t.Errorf("%v: the pings were answered with %q", d, got)
			}
		}
	}
}

// TestLargeSetIsReadWhereItStays: of a value that comes in many pieces only the first one and those are copied by the machine
// that a driver reads as usual. The memory that the driver has in the meantime is counted, and given back.
func TestLargeSetIsReadWhereItStays(t *testing.T) {
	const piece = 64 << 10
	for _, d := range []wire.Dialect{wire.Legacy, wire.V, wire.Native} {
		value := bytes.Repeat([]byte("v"), 1<<20)
		stream := wire.AppendSet(nil, d, "/key", value)
		if d == wire.Native {
			stream = frame(1, func(b []byte) []byte { return wire.AppendSet(b, d, "/key", value) })
		}
		b := newBench(testLimits)
		c := b.dial(d)
		before := b.m.Work()
		b.m.Take(c, append(make([]byte, 0, piece), stream[:piece]...), piece)
		var last []byte
		for at := piece; at < len(stream); {
			have, size := b.m.Rest(c)
			if len(have) != at || size <= at || size > max(2*at, len(stream)) || size > len(stream) {
				t.Fatalf("%v: %d bytes are here and %d to be read into, after %d", d, len(have), size, at)
			}
			if b.m.admission.in < int64(size) {
				t.Fatalf("%v: %d bytes are counted, the driver may have %d", d, b.m.admission.in, size)
			}
			last = append(make([]byte, 0, size), have...)
			last = append(last, stream[at:min(size, at+piece)]...)
			at = len(last)
			b.m.Extend(c, last)
		}
		if work := b.m.Work() - before; work > 128 {
			t.Errorf("%v: %d units of work", d, work)
		}
		e := b.m.table.Find([]byte("/key"))
		if e == nil || !bytes.Equal(e.Value(), value) || &e.Value()[0] != &last[len(last)-len(value)] {
			t.Errorf("%v: the value is not there, or was copied", d)
		}
		if b.m.admission.in != 0 || b.m.admission.granted != 0 {
			t.Errorf("%v: %d bytes are counted, %d granted", d, b.m.admission.in, b.m.admission.granted)
		}
	}
}

// TestExtendAfterTheEnd: a client may be closed while its driver reads the rest of a request.
func TestExtendAfterTheEnd(t *testing.T) {
	b := newBench(testLimits)
	c := b.dial(wire.V)
	stream := wire.AppendSet(nil, wire.V, "/key", make([]byte, 1<<20))
	b.m.Receive(c, stream[:100_000])
	have, size := b.m.Rest(c)
	if size == 0 {
		t.Fatal("nothing to go on with")
	}
	b.m.Close(c)
	b.m.Extend(c, append(append(make([]byte, 0, size), have...), stream[len(have):size]...))
	if _, size := b.m.Rest(c); size != 0 || b.m.admission.in != 0 || b.m.admission.granted != 0 {
		t.Errorf("a closed client may send %d bytes; %d are counted, %d granted", size, b.m.admission.in, b.m.admission.granted)
	}
}
