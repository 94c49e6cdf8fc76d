// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/transport"
)

// TestInbox does what meshes do with inboxes, at random, and compares with a slice.
func TestInbox(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var made transport.EarlyPool[int]
		var box transport.Inbox[int]
		var model []*transport.Early[int]
		check := func() {
			t.Helper()
			announced := 0
			for _, e := range model {
				if e.Announced {
					announced++
				}
			}
			var got []*transport.Early[int]
			for e := box.Head; e != nil; e = e.Next {
				got = append(got, e)
			}
			if !slices.Equal(got, model) || box.Announced != announced {
				t.Fatalf("seed %d: %d messages, %d announced; want %d, %d", seed, len(got), box.Announced, len(model), announced)
			}
		}
		for i := range 200 {
			slot := random.Uint64N(4)
			if random.IntN(2) == 0 {
				e := made.New(slot, random.IntN(1<<random.IntN(17)))
				e.Note = i
				if random.IntN(3) == 0 {
					e.Data, e.Announced = nil, true
				}
				for k := range e.Data {
					e.Data[k] = byte(i)
				}
				if n := len(model); n > 0 && !model[n-1].Before(e) {
					t.Fatalf("seed %d: the newest message is not the latest", seed)
				}
				box.Add(e)
				model = append(model, e)
			} else {
				at := slices.IndexFunc(model, func(e *transport.Early[int]) bool { return e.Slot == slot })
				e := box.First(slot)
				if at < 0 {
					if e != nil {
						t.Fatalf("seed %d: a message on slot %d", seed, slot)
					}
					continue
				}
				if e != model[at] {
					t.Fatalf("seed %d: not the first message on slot %d", seed, slot)
				}
				for _, v := range e.Data {
					if v != byte(e.Note) {
						t.Fatalf("seed %d: another message was written over this one", seed)
					}
				}
				box.Remove(e)
				box.Remove(e) // it is not there any more
				made.Recycle(e)
				model = slices.Delete(model, at, at+1)
			}
			check()
		}
	}
}

// A message must not take much more memory than it has bytes.
func TestRoom(t *testing.T) {
	for _, c := range []struct{ n, room int }{
		{0, 0},
		{1, 512},
		{512, 512},
		{513, 1024},
		{8 << 10, 8 << 10},
		{8<<10 + 1, 16 << 10},
		{40000, 1 << 16},
	} {
		if got := cap(new(transport.EarlyPool[int]).New(0, c.n).Data); got != c.room {
			t.Errorf("%d bytes take %d, want %d", c.n, got, c.room)
		}
	}
}
