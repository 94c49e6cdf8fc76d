// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
)

// image is a memory of its own: what was written at an address can be read there.
type image struct{ bytes []byte }

const imageBase = 0x10000

func (m *image) ReadAt(p []byte, addr int64) (int, error) {
	at := addr - imageBase
	if at < 0 || at+int64(len(p)) > int64(len(m.bytes)) {
		return 0, io.EOF
	}
	return copy(p, m.bytes[at:]), nil
}

func (m *image) word(addr, v uint64) { binary.LittleEndian.PutUint64(m.bytes[addr-imageBase:], v) }

// python311 builds the memory of a Python 3.11 with one thread in the calls given, outermost first.
type python311 struct {
	image
	next uint64
}

func (p *python311) alloc(n int) uint64 {
	at := p.next
	p.next += uint64(n+15) &^ 15
	return at
}

func (p *python311) str(s string) uint64 {
	at := p.alloc(48 + len(s))
	p.word(at+16, uint64(len(s)))
	p.word(at+32, 1<<6|1<<2)
	copy(p.bytes[at+48-imageBase:], s)
	return at
}

func (p *python311) code(name, file string, first int, table []byte) uint64 {
	at := p.alloc(256)
	t := p.alloc(32 + len(table))
	p.word(t+16, uint64(len(table)))
	copy(p.bytes[t+32-imageBase:], table)
	p.word(at+72, uint64(first))
	p.word(at+112, p.str(file))
	p.word(at+128, p.str(name))
	p.word(at+136, t)
	return at
}

const (
	testRuntime = imageBase + 64
	testVersion = imageBase + 8
	testThread  = imageBase + 3072
	testCFrame  = imageBase + 3584
)

func newPython311(size int) *python311 {
	p := &python311{image: image{make([]byte, size)}, next: imageBase + 4096}
	p.word(testVersion, 0x030b07f0)
	interp := uint64(imageBase + 2048)
	p.word(testRuntime+40, interp)
	p.word(interp+16, testThread)
	p.word(testThread+160, 77)
	p.word(testThread+56, testCFrame)
	return p
}

func (p *python311) call(previous, code uint64, unit int) uint64 {
	at := p.alloc(96)
	p.word(at+48, previous)
	p.word(at+32, code)
	p.word(at+56, code+184+uint64(2*unit))
	p.word(testCFrame+8, at)
	return at
}

func (p *python311) read() ([]Thread, error) {
	w, err := newWalker(p, testRuntime, testVersion)
	if err != nil {
		return nil, err
	}
	return w.threads(context.Background())
}

func TestWalk(t *testing.T) {
	t.Parallel()
	p := newPython311(1 << 16)
	// Two units on the first line, one a line further down, one without a line.
	table := []byte{0x80 | 13<<3 | 1, 0, 0x80 | 11<<3, 0, 0, 0x80 | 15<<3}
	main := p.code("main", "/srv/train.py", 10, table)
	outer := p.call(0, main, 1)
	p.call(outer, p.code("load", "/srv/data.py", 3, table), 2)
	threads, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	if threads[0].HoldsGIL {
		t.Error("the thread holds a lock that is free")
	}
	p.word(testRuntime+360+8, testThread)
	if threads, err = p.read(); err != nil || threads[0].HoldsGIL {
		t.Errorf("%v: the last holder of a lock is not one that holds it", err)
	}
	p.word(testRuntime+360+16, 1)
	if threads, err = p.read(); err != nil || !threads[0].HoldsGIL {
		t.Errorf("%v: the thread does not hold the lock", err)
	}
	want := []Frame{{Func: "load", File: "/srv/data.py", Line: 4}, {Func: "main", File: "/srv/train.py", Line: 10}}
	if len(threads) != 1 || threads[0].ID != 77 || threads[0].Moving || threads[0].Truncated || !slices.Equal(threads[0].Frames, want) {
		t.Errorf("threads are %+v, want one with %+v", threads, want)
	}
}

// TestCycle: a chain of frames that bites its tail is cut, and marked as cut.
func TestCycle(t *testing.T) {
	t.Parallel()
	p := newPython311(1 << 16)
	code := p.code("main", "/srv/train.py", 10, nil)
	first := p.call(0, code, 0)
	last := p.call(first, code, 0)
	p.word(first+48, last)
	threads, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) != 1 || !threads[0].Truncated || len(threads[0].Frames) != maxFrames {
		t.Errorf("%d frames, truncated %v", len(threads[0].Frames), threads[0].Truncated)
	}
	p.word(testThread+8, testThread) // a thread that is its own successor
	if threads, err = p.read(); err != nil || len(threads) != maxThreads {
		t.Errorf("%d threads, %v", len(threads), err)
	}
}

// changing returns another stack at every reading.
type changing struct {
	*python311
	n *uint64
}

func (c changing) ReadAt(p []byte, addr int64) (int, error) {
	if uint64(addr) == testThread+56 {
		*c.n++
		c.word(testCFrame+8, c.next-96*(*c.n%2)-96)
	}
	return c.python311.ReadAt(p, addr)
}

func TestMoving(t *testing.T) {
	t.Parallel()
	p := newPython311(1 << 16)
	code := p.code("main", "/srv/train.py", 10, nil)
	p.call(p.call(p.call(0, code, 0), code, 0), code, 0)
	w, err := newWalker(changing{p, new(uint64)}, testRuntime, testVersion)
	if err != nil {
		t.Fatal(err)
	}
	threads, err := w.threads(context.Background())
	if err != nil || len(threads) != 1 || !threads[0].Moving {
		t.Errorf("threads are %+v, %v; want one that is moving", threads, err)
	}
}

// TestCorruptMemory changes bytes of a good image at random: whatever comes out, it comes out soon and without a panic.
func TestCorruptMemory(t *testing.T) {
	t.Parallel()
	good := newPython311(1 << 14)
	table := []byte{0x80 | 14<<3 | 1, 0x7f, 0x7f, 1, 1, 0x80 | 11<<3, 0, 0}
	frame := uint64(0)
	for range 20 {
		frame = good.call(frame, good.code("main", "/srv/train.py", 10, table), 1)
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		bad := &python311{image: image{bytes.Clone(good.bytes)}, next: good.next}
		for range 1 + r.IntN(64) {
			at := uint64(r.IntN(len(bad.bytes)/8)) * 8
			v := imageBase + uint64(r.IntN(len(bad.bytes)))
			if r.IntN(2) == 0 {
				v = r.Uint64()
			}
			if at != testVersion-imageBase {
				bad.word(imageBase+at, v)
			}
		}
		threads, err := bad.read()
		if err == nil && len(threads) > maxThreads {
			t.Fatalf("seed %d: %d threads", seed, len(threads))
		}
		for _, th := range threads {
			if len(th.Frames) > maxFrames {
				t.Fatalf("seed %d: %d frames", seed, len(th.Frames))
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	table := func(version, free uint64) *image {
		m := &image{make([]byte, 4096)}
		copy(m.bytes[testRuntime-imageBase:], cookie)
		m.word(testRuntime+8, version)
		m.word(testRuntime+16, free)
		return m
	}
	huge := table(0x030d05f0, 0)
	huge.word(testRuntime+24+16, 1<<40)
	old := &image{make([]byte, 4096)}
	old.word(testVersion, 0x030a00f0)
	for name, c := range map[string]struct {
		mem     *image
		version uint64
		want    error
	}{
		"a later Python":   {table(0x030f00f0, 0), 0, errUnsupported},
		"free-threaded":    {table(0x030e00f0, 1), 0, errUnsupported},
		"huge offsets":     {huge, 0, errCorrupt},
		"an older Python":  {old, testVersion, errUnsupported},
		"without a number": {old, 0, errUnsupported},
		"nothing mapped":   {&image{}, testVersion, io.EOF},
	} {
		if _, err := newWalker(c.mem, testRuntime, c.version); !errors.Is(err, c.want) {
			t.Errorf("%s: error is %v, want %v", name, err, c.want)
		}
	}
}

func FuzzLineAt(f *testing.F) {
	f.Add([]byte{0x80 | 13<<3 | 1, 0, 0x80 | 11<<3, 0, 0}, 10, 1)
	f.Add([]byte{0x80 | 14<<3 | 7, 0xff, 0xff, 0xff, 0xff}, 1, 100)
	f.Fuzz(func(_ *testing.T, table []byte, first, unit int) { lineAt(table, first, unit) })
}

// impl writes the part of a tensor that follows its reference count and other fields of some size.
func impl(before int, kind uint16, count uint64, sizes ...uint64) []byte {
	b := make([]byte, implSize)
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(b[before+off:], v) }
	put(0, uint64(len(sizes)))
	stride := uint64(1)
	for i, size := range slices.Backward(sizes) {
		put(dimsSizes+8*i, size)
		put(dimsStrides+8*i, stride)
		stride *= size
	}
	put(dimsCount, count)
	binary.LittleEndian.PutUint16(b[before+dimsType:], kind)
	return b
}

// TestTensor: the shape of a tensor is found wherever its version of PyTorch has it, and only if its parts agree.
func TestTensor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		impl []byte
		want string
	}{
		{impl(64, 6, 8, 4, 2), "float32[4,2]"},
		{impl(88, 4, 5, 5), "int64[5]"},
		{impl(72, 15, 24, 1, 2, 3, 4, 1), "bfloat16[1,2,3,4,1]"},
		{impl(64, 6, 9, 4, 2), ""},
		{impl(64, 200, 8, 4, 2), ""},
		{impl(64, 6, 1), ""},
		{impl(64, 6, 0, 0), ""},
		{impl(64, 6, 1<<62, 1<<31, 1<<31), ""},
	} {
		for _, at := range []uint64{16, 24} { // a reference alone, or after a flag
			memory := make([]byte, 1<<14)
			binary.LittleEndian.PutUint64(memory[0x100+at:], 0x2000)
			copy(memory[0x2000:], c.impl)
			w := &walker{mem: bytes.NewReader(memory)}
			if got := w.tensor(0x100); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 { // whatever is there
		memory := make([]byte, 1<<14)
		for i := 0; i < len(memory); i += 8 {
			binary.LittleEndian.PutUint64(memory[i:], r.Uint64N(1<<r.UintN(14)))
		}
		_ = (&walker{mem: bytes.NewReader(memory)}).tensor(r.Uint64N(1 << 14))
	}
}
