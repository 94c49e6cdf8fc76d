// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memtransport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

func TestMessagesMatchInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(3)
		var trace []string
		w.Trace(func(m message) { trace = append(trace, string(m.Data)) })
		a, b := w.Mesh(0), w.Mesh(1)
		first := &transport.Op{Peer: 1, Slot: 1, Buf: []byte("one")}
		second := &transport.Op{Peer: 1, Slot: 1, Buf: []byte("two")}
		other := &transport.Op{Peer: 1, Slot: 2, Buf: []byte("other")}
		a.Send(first)
		a.Send(second)
		a.Send(other)
		in := []*transport.Op{
			{Peer: 0, Slot: 2, Buf: make([]byte, 8)},
			{Peer: 0, Slot: 1, Buf: make([]byte, 3)},
			{Peer: transport.AnyPeer, Slot: 1, Buf: make([]byte, 3)},
		}
		for i, want := range []string{"other", "one", "two"} {
			b.Recv(in[i])
			if err := b.Wait(t.Context(), in[i]); err != nil {
				t.Fatal(err)
			}
			if got := string(in[i].Buf[:in[i].N]); got != want || in[i].Source != 0 || trace[i] != want {
				t.Fatalf("%q from %d, trace %q, want %q", got, in[i].Source, trace[i], want)
			}
		}
		for _, op := range []*transport.Op{first, second, other} {
			if err := a.Wait(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestEndings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(3)
		a, b := w.Mesh(0), w.Mesh(1)
		long := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 9)}
		room := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 8)}
		b.Recv(room)
		a.Send(long)
		if err := a.Wait(t.Context(), long); !errors.Is(err, cohort.Mismatch) {
			t.Fatal(err)
		}
		waiting := &transport.Op{Peer: 1, Slot: 2, Buf: make([]byte, 1)}
		a.Recv(waiting)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.Wait(ctx, waiting); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatal(err)
		}
		if !a.Cancel(waiting) || a.Cancel(waiting) || !errors.Is(waiting.State.Err, cohort.Aborted) {
			t.Fatal("an unmatched receive can be withdrawn, once")
		}
		fromB := &transport.Op{Peer: 1, Slot: 3, Buf: make([]byte, 1)}
		anyone := &transport.Op{Peer: transport.AnyPeer, Slot: 3, Buf: make([]byte, 1)}
		a.Recv(fromB)
		a.Recv(anyone)
		w.Kill(1)
		if err := a.Wait(t.Context(), fromB); !errors.Is(err, cohort.PeerLost) {
			t.Fatal(err)
		}
		if anyone.Completed() {
			t.Fatal("rank 2 may still send")
		}
		w.Kill(2)
		if err := a.Wait(t.Context(), anyone); !errors.Is(err, cohort.PeerLost) {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		late := &transport.Op{Peer: 1, Slot: 1}
		a.Send(late)
		if err := a.Wait(t.Context(), late); !errors.Is(err, cohort.Closed) {
			t.Fatal(err)
		}
	})
}
