// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/store/storewire/storecapture"
)

// FuzzMachine lets two clients of any dialect send anything, in pieces, with a third one that is honest. Nothing may
// fail, bounds must hold, the honest client must be answered, and at the end nothing may be left of the others.
func FuzzMachine(f *testing.F) {
	for _, version := range storecapture.Versions {
		blocks, err := storecapture.Load(version)
		if err != nil {
			f.Fatal(err)
		}
		var session []byte
		for _, b := range blocks[:30] {
			for _, item := range b.Items {
				if item.Request && len(session) < 600 {
					session = append(session, item.Data...)
				}
			}
		}
		f.Add(session, []byte{}, uint8(7))
	}
	native := wire.AppendUpgrade(wire.AppendValidate(nil))
	for i, write := range []func([]byte) []byte{
		func(b []byte) []byte { return wire.AppendKey(b, wire.Native, wire.Get, "k") },
		func(b []byte) []byte { return wire.AppendKeys(b, wire.Native, wire.MultiGet, "k", "j", "k") },
		func(b []byte) []byte { return wire.AppendQueuePop(b, "q", true) },
		func(b []byte) []byte { return wire.AppendBarrier(b, wire.Native, "bar", 2) },
		func(b []byte) []byte { return wire.AppendCancel(b, 1) },
		func(b []byte) []byte {
			return wire.AppendCompareSet(b, wire.Native, wire.ClaimPrefix+"rank/0", nil, []byte("me"))
		},
	} {
		native = append(native, frame(uint32(i), write)...)
	}
	other := wire.AppendMultiSet(wire.AppendValidate(nil), wire.V, []string{"k", "j"}, [][]byte{[]byte("1"), nil})
	other = wire.AppendBarrier(wire.AppendKeyValue(other, wire.V, wire.QueuePush, "q", []byte("x")), wire.V, "bar", 2)
	f.Add(native, other, uint8(3))
	f.Add(wire.AppendSet(wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "k"), wire.Legacy, "k", []byte("v")), other, uint8(1))

	limits := Limits{Limits: wire.Limits{Key: 64, Value: 256, Keys: 16, Request: 1024}, Memory: 32 << 10, Output: 4 << 10, Waits: 8}
	f.Fuzz(func(t *testing.T, one, two []byte, piece uint8) {
		b := newBench(limits)
		honest := b.dial(wire.V)
		bad := []*Conn{b.m.Open("one", nil), b.m.Open("two", nil)}
		input := [][]byte{one, two}
		for len(input[0])+len(input[1]) > 0 {
			for i, c := range bad {
				n := min(int(piece)+1, len(input[i]))
				b.send(c, input[i][:n])
				input[i] = input[i][n:]
			}
			if b.m.memory() > limits.Memory+4096 {
				t.Fatalf("%d bytes are held", b.m.memory())
			}
			b.send(honest, wire.AppendPing(nil, wire.V, 5))
			if got := b.take(honest); got != "\x05\x00\x00\x00" || b.cuts[honest] != nil {
				t.Fatalf("the honest client got % x, %v", got, b.cuts[honest])
			}
		}
		b.m.Snapshot(10)
		for _, c := range bad {
			b.m.Close(c)
		}
		b.m.Close(honest)
		queued, claimed := int64(0), int64(0) // claims stay
		for _, c := range b.m.claims.byName {
			claimed += c.cost
		}
		for key, q := range b.m.queues.byKey {
			queued += int64(len(key)) + itemCost
			for _, item := range q.items[q.first:] {
				queued += int64(len(item)) + itemCost
			}
		}
		if b.m.waits.n != 0 || len(b.m.waits.byKey)+len(b.m.waits.barriers)+len(b.m.watchers) != 0 ||
			b.m.admission.in+b.m.admission.out != 0 ||
			b.m.queues.bytes != queued || b.m.admission.waits != claimed {
			t.Fatalf("left: %d waits, %d %d %d lists, %d and %d bytes of buffers, %d bytes of queues, want %d, %d bytes of claims, want %d",
				b.m.waits.n, len(b.m.waits.byKey), len(b.m.waits.barriers), len(b.m.watchers), b.m.admission.in, b.m.admission.out,
				b.m.queues.bytes, queued, b.m.admission.waits, claimed)
		}
		conns := 0
		for _, n := range b.m.counts.conns {
			conns += n
		}
		if conns != 0 {
			t.Fatalf("%d connections are still counted", conns)
		}
	})
}
