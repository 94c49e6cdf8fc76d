// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// largeMessage is one that its receiver has to answer before it moves.
func largeMessage(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 300_000) }

func TestKeeperServesUnwaitedMessages(t *testing.T) {
	meshes := connect(t, 2, nil)
	for i := range 20 {
		if i%2 == 1 { // a goroutine drove just now
			ping, pong := &transport.Op{Peer: 1, Slot: 2, Buf: []byte{1}}, &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)}
			meshes[0].Send(ping)
			meshes[1].Recv(pong)
			if err := wait(t, meshes[1], pong); err != nil {
				t.Fatal(err)
			}
		}
		send, recv := &transport.Op{Peer: 1, Slot: 3, Buf: largeMessage(i)}, &transport.Op{Peer: 0, Slot: 3, Buf: make([]byte, 300_000)}
		meshes[1].Recv(recv)
		meshes[0].Send(send)
		testkit.Until(t, "a message without a waiter moves", func() bool { return send.Completed() && recv.Completed() })
		if recv.State.Err != nil || send.State.Err != nil || !bytes.Equal(recv.Buf, send.Buf) {
			t.Fatalf("round %d: %v, %v", i, recv.State.Err, send.State.Err)
		}
	}
}

// A rank that stands still in the middle of a collective does not hold up messages beside it.
func TestKeeperServesBesideACollectiveThatStandsStill(t *testing.T) {
	meshes := connect(t, 2, nil)
	slot := nativewire.CollectiveSlot(1)
	meshes[1].Begin(slot, nativewire.CallOf(&collective.Request{Kind: collective.Barrier, Tag: 1}))
	part := &transport.Op{Peer: 0, Slot: slot, Buf: nil}
	meshes[1].Recv(part)
	for i := range 3 {
		send, recv := &transport.Op{Peer: 1, Slot: 3, Buf: largeMessage(i)}, &transport.Op{Peer: 0, Slot: 3, Buf: make([]byte, 300_000)}
		meshes[1].Recv(recv)
		meshes[0].Send(send)
		testkit.Until(t, "a message beside a collective moves", func() bool { return send.Completed() && recv.Completed() })
		if !bytes.Equal(recv.Buf, send.Buf) {
			t.Fatalf("round %d: %v, %v", i, recv.State.Err, send.State.Err)
		}
	}
	if !meshes[1].Cancel(part) {
		t.Error("the collective's receive is gone")
	}
	meshes[1].End(slot)
}

// While a goroutine drives, the runtime's poller is not notified; when none does, it is again.
func TestPollerListensOnlyWithoutDriver(t *testing.T) {
	meshes := connect(t, 2, nil)
	listening := func() bool {
		meshes[1].mu.Lock()
		defer meshes[1].mu.Unlock()
		return meshes[1].watch.listening
	}
	testkit.Until(t, "the poller listens", listening)
	recv := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)}
	meshes[1].Recv(recv)
	done := make(chan error, 1)
	go func() { done <- wait(t, meshes[1], recv) }()
	testkit.Until(t, "a goroutine drives", func() bool {
		meshes[1].mu.Lock()
		defer meshes[1].mu.Unlock()
		return meshes[1].mu.driver.taken
	})
	if listening() {
		t.Error("the poller listens while a goroutine drives")
	}
	last := &transport.Op{Peer: 1, Slot: 2, Buf: []byte{1}}
	meshes[0].Send(last)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the poller listens again", listening)
}

func TestAnyPeerWithoutAListTakesAll(t *testing.T) {
	meshes := connect(t, 3, nil)
	for _, from := range []int{2, 1} {
		recv := &transport.Op{Peer: transport.AnyPeer, Slot: 4, Buf: make([]byte, 1)}
		meshes[0].Recv(recv)
		send := &transport.Op{Peer: 0, Slot: 4, Buf: []byte{7}}
		meshes[from].Send(send)
		if err := wait(t, meshes[0], recv); err != nil || recv.Source != from || recv.Buf[0] != 7 {
			t.Errorf("from rank %d: %v, from rank %d", from, err, recv.Source)
		}
	}
}

// The time that a process slept, with all others perhaps, does not count as a peer's silence; what it was awake to see does.
func TestOwnSleepIsNoSilence(t *testing.T) {
	m := connectWith(t, 2, nil, func(c *Config) { c.Heartbeat = time.Hour })[0]
	passes := func(d time.Duration) (lost bool) {
		m.mu.Lock()
		m.mu.lastBeat = time.Now().Add(-d)
		m.mu.Unlock()
		m.beat()
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.mu.conns[1].gone != nil
	}
	passes(time.Minute) // what was said while the ranks connected
	if passes(24 * time.Hour) {
		t.Error("after a day of sleep the peer counts as lost")
	}
	lost := false
	for range 3 {
		lost = passes(25 * time.Minute)
	}
	if !lost {
		t.Error("a peer that says nothing for more than an hour is not lost")
	}
}
