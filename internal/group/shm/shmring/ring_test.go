// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shmring

import (
	"bytes"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// twoSides returns the sender's and the receiver's view of a fresh ring of the given size.
func twoSides(size int) (sender, receiver *Ring) {
	words := make([]uint64, (ControlSize+size)/8)
	control := (*Control)(unsafe.Pointer(&words[0]))
	data := unsafe.Slice((*byte)(unsafe.Pointer(&words[ControlSize/8])), size)
	return &Ring{control: control, data: data}, &Ring{control: control, data: data}
}

// TestRingIsAQueue puts and takes frames at random and compares with a plain queue.
func TestRingIsAQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const size = 1024
		sender, receiver := twoSides(size)
		start := rapid.Uint64Range(0, 3).Draw(t, "start")*(1<<63) - uint64(Unit)*rapid.Uint64Range(0, 40).Draw(t, "before wrap")
		sender.pos, sender.other, receiver.pos, receiver.other = start, start, start, start
		sender.control.head.Store(start)
		sender.control.tail.Store(start)
		var queue [][]byte
		used := 0
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "put") {
				payload := bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, size/4).Draw(t, "size"))
				switch {
				case sender.Put(Frame{Kind: Eager, ID: uint64(i)}, payload):
					queue = append(queue, payload)
					used += space(len(payload))
					sender.Publish()
				case used == 0:
					t.Fatalf("an empty ring refused %d bytes", len(payload))
				}
				continue
			}
			f, payload, ok, broken := receiver.Peek()
			if broken || ok != (len(queue) > 0) {
				t.Fatalf("ok %v, broken %v with %d frames queued", ok, broken, len(queue))
			}
			if ok {
				if !bytes.Equal(payload, queue[0]) {
					t.Fatalf("%d bytes of %v instead of %d", len(payload), payload, len(queue[0]))
				}
				used -= space(len(payload))
				queue = queue[1:]
				receiver.Consume(f)
				receiver.Release()
			}
		}
	})
}

// TestWindow sends messages that the window affords and takes them at random: the receiver never keeps more than the window, it reads
// whatever arrives, and what was taken can be sent again.
func TestWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sender, receiver := twoSides(1 << 20)
		size := rapid.SampledFrom([]int{0, 1, 4096, 4097, 8192, 100_000}).Draw(t, "size")
		payload := make([]byte, size)
		var kept []int
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			sent := 0
			for ; sender.Affords(size) && sent < 2*WindowMessages; sent++ {
				if !sender.Put(Frame{Kind: Eager}, payload) {
					t.Fatal("no room in the ring")
				}
				sender.Publish()
				f, got, ok, broken := receiver.Peek()
				if !ok || broken || len(got) != size {
					t.Fatalf("message %d: %d bytes, ok %v, broken %v", sent, len(got), ok, broken)
				}
				receiver.Consume(f)
				receiver.Release()
				kept = append(kept, len(got))
			}
			if len(kept) > WindowMessages || len(kept)*size > WindowSize {
				t.Fatalf("%d messages of %d bytes are kept", len(kept), size)
			}
			if most := WindowSize / int(cost(size)); len(kept) < most-most/4 {
				t.Fatalf("the window takes only %d messages of %d bytes", len(kept), size)
			}
			for n := rapid.IntRange(0, len(kept)).Draw(t, "taken"); n > 0; n-- {
				receiver.Taken(kept[0])
				kept = kept[1:]
			}
		}
	})
}

// A receiver that gives back what was not used, and a sender that sends more than the window has, harm only themselves.
func TestWindowOfABrokenPeer(t *testing.T) {
	t.Parallel()
	sender, receiver := twoSides(1 << 20)
	put := func() {
		if !sender.Put(Frame{Kind: Eager}, nil) {
			t.Fatal("no room in the ring")
		}
		sender.Publish()
	}
	for range WindowMessages {
		put()
		f, _, ok, _ := receiver.Peek()
		if !ok {
			t.Fatal("no frame")
		}
		receiver.Consume(f)
		receiver.Release()
	}
	for _, taken := range []uint64{WindowSize + 1, 1 << 63, ^uint64(0)} {
		sender.control.taken.Store(taken)
		if sender.Affords(1) {
			t.Errorf("the receiver gave back %d of %d", taken, WindowSize)
		}
	}
	put()
	if _, _, ok, broken := receiver.Peek(); ok || !broken {
		t.Error("more than the window was taken")
	}
}

// FuzzRing lets the receiver read what no sender wrote: it must neither crash nor loop.
func FuzzRing(f *testing.F) {
	f.Add(uint64(64), []byte{1, 0, 0, 0, 5, 0, 0, 0})
	f.Add(uint64(1024), []byte{0, 0, 0, 0, 0xe0, 3, 0, 0})
	f.Add(uint64(1<<63), []byte{})
	f.Fuzz(func(t *testing.T, head uint64, data []byte) {
		_, r := twoSides(1024)
		copy(r.data, data)
		r.control.head.Store(head)
		for range 100 {
			fr, payload, ok, _ := r.Peek()
			if !ok {
				return
			}
			if len(payload) > 1024 {
				t.Fatal("a payload larger than the ring")
			}
			r.Consume(fr)
		}
	})
}
