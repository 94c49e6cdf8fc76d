// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect makes a mesh of size ranks; disturb is called with the listeners' addresses before the ranks connect.
func connect(t *testing.T, size int, disturb func(addrs []string)) []*Mesh {
	t.Helper()
	return connectWith(t, size, disturb, func(*Config) {})
}

func connectWith(t *testing.T, size int, disturb func(addrs []string), change func(*Config)) []*Mesh {
	t.Helper()
	listeners, peers := make([]net.Listener, size), make([]string, size)
	for r := range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[r], peers[r] = l, l.Addr().String()
	}
	if disturb != nil {
		disturb(peers)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	meshes := make([]*Mesh, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			cfg := Config{Rank: r, Size: size, Group: [16]byte{9}, Listener: listeners[r], Peers: peers, Shared: true}
			change(&cfg)
			m, err := Connect(ctx, cfg)
			if err != nil {
				t.Error(err)
				return
			}
			meshes[r] = m
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, m := range meshes {
			wg.Go(func() { _ = m.Close() })
		}
		wg.Wait()
	})
	return meshes
}

func wait(t *testing.T, m *Mesh, op *transport.Op) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return m.Wait(ctx, op)
}

func TestGarbageAtTheListenerIsHarmless(t *testing.T) {
	meshes := connect(t, 2, func(addrs []string) {
		foreign := nativewire.Hello{Version: nativewire.Version, Group: [16]byte{1}, From: 1, To: 0, Size: 2, Lanes: 1}
		hello := make([]byte, nativewire.HelloSize)
		foreign.Put(hello)
		for _, junk := range [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nand more than a hello"), hello, {}} {
			c, err := net.Dial("tcp", addrs[0])
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(junk)
			t.Cleanup(func() { _ = c.Close() })
		}
	})
	send, recv := &transport.Op{Peer: 1, Slot: 3, Buf: []byte("hi")}, &transport.Op{Peer: 0, Slot: 3, Buf: make([]byte, 2)}
	meshes[0].Send(send)
	meshes[1].Recv(recv)
	if err := errors.Join(wait(t, meshes[0], send), wait(t, meshes[1], recv)); err != nil || string(recv.Buf) != "hi" {
		t.Errorf("%q %v", recv.Buf, err)
	}
}

// Messages that no receive has asked for are held up to the window; then the sender asks first. Nothing is lost or reordered.
func TestUnexpectedMessagesAreBounded(t *testing.T) {
	meshes := connect(t, 2, nil)
	const count, size = 100, 20 << 10 // 2 MiB against a window of 256 KiB
	sends := make([]*transport.Op, count)
	for i := range sends {
		sends[i] = &transport.Op{Peer: 1, Slot: 5, Buf: bytes.Repeat([]byte{byte(i)}, size)}
		meshes[0].Send(sends[i])
	}
	held := func() (bytes int) {
		meshes[1].mu.Lock()
		defer meshes[1].mu.Unlock()
		for a := meshes[1].mu.conns[0].recvs.inbox.Head; a != nil; a = a.Next {
			bytes += len(a.Data)
		}
		return bytes
	}
	// As many arrive as the window takes, and no more however long one waits.
	testkit.Until(t, "the window is used", func() bool { return held() > defaultWindow-2*size })
	time.Sleep(20 * time.Millisecond)
	if n := held(); n > defaultWindow {
		t.Errorf("%d bytes are held", n)
	}
	for i := range count {
		op := &transport.Op{Peer: 0, Slot: 5, Buf: make([]byte, size)}
		meshes[1].Recv(op)
		if err := wait(t, meshes[1], op); err != nil || op.N != size || op.Buf[0] != byte(i) || op.Buf[size-1] != byte(i) {
			t.Fatalf("message %d: %d bytes of %d, %v", i, op.N, op.Buf[0], err)
		}
	}
	for _, op := range sends {
		if err := wait(t, meshes[0], op); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTooLongAndTooShort(t *testing.T) {
	for _, size := range []int{100, 200_000} {
		meshes := connect(t, 2, nil)
		send, recv := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, size)}, &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, size-1)}
		meshes[1].Recv(recv)
		meshes[0].Send(send)
		if err := wait(t, meshes[1], recv); !errors.Is(err, cohort.Mismatch) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err := wait(t, meshes[0], send); size > eagerMax && !errors.Is(err, cohort.Mismatch) {
			t.Errorf("sender of %d bytes: %v", size, err)
		}
		short, room := &transport.Op{Peer: 1, Slot: 2, Buf: []byte{7}}, &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, size)}
		meshes[0].Send(short)
		meshes[1].Recv(room)
		if err := wait(t, meshes[1], room); err != nil || room.N != 1 || room.Buf[0] != 7 {
			t.Errorf("a short message: %d, %v", room.N, err)
		}
	}
}

func TestAnyPeerAndCancel(t *testing.T) {
	meshes := connect(t, 3, nil)
	seen := map[int]bool{}
	for i := range 2 {
		op := &transport.Op{Peer: transport.AnyPeer, From: []int{1, 2}, Slot: 4, Buf: make([]byte, 100_000)}
		meshes[0].Recv(op)
		if i == 0 {
			for r := 1; r < 3; r++ {
				size := 10
				if r == 2 {
					size = 100_000
				}
				send := &transport.Op{Peer: 0, Slot: 4, Buf: make([]byte, size)}
				meshes[r].Send(send)
			}
		}
		if err := wait(t, meshes[0], op); err != nil {
			t.Fatal(err)
		}
		seen[op.Source] = true
	}
	if !seen[1] || !seen[2] {
		t.Errorf("sources %v", seen)
	}
	op := &transport.Op{Peer: 1, Slot: 8, Buf: make([]byte, 1)}
	meshes[0].Recv(op)
	if !meshes[0].Cancel(op) || meshes[0].Cancel(op) || !errors.Is(wait(t, meshes[0], op), cohort.Aborted) {
		t.Error("a receive without a match cannot be withdrawn")
	}
}

func TestGoodbyeEndsOnlyWhatNeedsTheRank(t *testing.T) {
	meshes := connect(t, 3, nil)
	last := &transport.Op{Peer: 0, Slot: 1, Buf: []byte("bye")}
	meshes[2].Send(last)
	pending := &transport.Op{Peer: 2, Slot: 2, Buf: make([]byte, 1)}
	meshes[1].Recv(pending)
	if err := meshes[2].Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, meshes[1], pending); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("a receive from a rank that left: %v", err)
	}
	// What it sent before is still there, and the others go on.
	got := &transport.Op{Peer: 2, Slot: 1, Buf: make([]byte, 3)}
	meshes[0].Recv(got)
	if err := wait(t, meshes[0], got); err != nil || string(got.Buf) != "bye" {
		t.Errorf("%q %v", got.Buf, err)
	}
	send, recv := &transport.Op{Peer: 1, Slot: 9, Buf: []byte("on")}, &transport.Op{Peer: 0, Slot: 9, Buf: make([]byte, 2)}
	meshes[0].Send(send)
	meshes[1].Recv(recv)
	if err := errors.Join(wait(t, meshes[0], send), wait(t, meshes[1], recv)); err != nil {
		t.Error(err)
	}
}

// A failure in the middle of a large message reaches the other side with its reason, and buffers come back.
func TestFailureDuringALargeMessage(t *testing.T) {
	meshes := connect(t, 2, nil)
	send, recv := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 64<<20)}, &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 64<<20)}
	meshes[1].Recv(recv)
	meshes[0].Send(send)
	time.Sleep(5 * time.Millisecond)
	reason := cohort.New("test", cohort.Aborted, "enough")
	meshes[0].Fail(reason)
	if err := wait(t, meshes[0], send); err != nil && !errors.Is(err, cohort.Aborted) {
		t.Errorf("sender: %v", err)
	}
	if err := wait(t, meshes[1], recv); err != nil &&
		(!errors.Is(err, cohort.Aborted) || !bytes.Contains([]byte(err.Error()), []byte("enough"))) {
		t.Errorf("receiver: %v", err)
	}
}

func BenchmarkPingPong(b *testing.B) {
	// Allocations are what matters here; times depend on the machine.
	listeners, peers := make([]net.Listener, 2), make([]string, 2)
	for r := range 2 {
		listeners[r], _ = net.Listen("tcp", "127.0.0.1:0")
		peers[r] = listeners[r].Addr().String()
	}
	meshes := make([]*Mesh, 2)
	var wg sync.WaitGroup
	for r := range 2 {
		wg.Go(func() {
			meshes[r], _ = Connect(b.Context(), Config{Rank: r, Size: 2, Listener: listeners[r], Peers: peers, Shared: true})
		})
	}
	wg.Wait()
	defer func() {
		for _, m := range meshes {
			wg.Go(func() { _ = m.Close() })
		}
		wg.Wait()
	}()
	ctx := context.Background()
	out, in := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 64)}, &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 64)}
	b.ReportAllocs()
	for b.Loop() {
		meshes[0].Send(out)
		meshes[1].Recv(in)
		if err := meshes[1].Wait(ctx, in); err != nil {
			b.Fatal(err)
		}
		if err := meshes[0].Wait(ctx, out); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAnnouncedMessageOfARankThatLeft: what a rank had announced and not sent when it left never comes. A receive for it
// ends at once, and Close does not wait for it.
func TestAnnouncedMessageOfARankThatLeft(t *testing.T) {
	meshes := connect(t, 2, nil)
	send := &transport.Op{Peer: 0, Slot: 5, Buf: make([]byte, 4*eagerMax)}
	meshes[1].Send(send) // too large to go without a receive: it is announced
	probe := &transport.Op{Peer: 0, Slot: 6, Buf: []byte{1}}
	meshes[1].Send(probe)
	if err := wait(t, meshes[0], receive(meshes[0], 6, 1)); err != nil { // behind the announcement
		t.Fatal(err)
	}
	_ = meshes[1].Close()
	for { // until rank 0 has read the goodbye
		if err := wait(t, meshes[0], receive(meshes[0], 7, 1)); errors.Is(err, cohort.PeerLost) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := meshes[0].Wait(ctx, receive(meshes[0], 5, 4*eagerMax)); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("a message that was announced: %v", err)
	}
	anyPeer := &transport.Op{Peer: transport.AnyPeer, Slot: 5, Buf: make([]byte, 4*eagerMax)}
	meshes[0].Recv(anyPeer)
	if err := meshes[0].Wait(ctx, anyPeer); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("a message that was announced, from any rank: %v", err)
	}
}

func receive(m *Mesh, slot uint64, n int) *transport.Op {
	op := &transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, n)}
	m.Recv(op)
	return op
}

// TestMoreMessagesThanMayBeAnnounced: a rank may post more messages than the other one keeps account of. What is beyond waits until some
// were received.
func TestMoreMessagesThanMayBeAnnounced(t *testing.T) {
	meshes := connect(t, 2, nil)
	const count = maxAnnounced + 5000
	sends := make([]transport.Op, count)
	for i := range sends {
		sends[i] = transport.Op{Peer: 0, Slot: 1, Buf: []byte{byte(i), byte(i >> 8), byte(i >> 16)}}
		meshes[1].Send(&sends[i])
	}
	testkit.Until(t, "as many as may be are announced", func() bool {
		meshes[0].mu.Lock()
		defer meshes[0].mu.Unlock()
		return meshes[0].mu.conns[1].recvs.inbox.Announced == maxAnnounced
	})
	op := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 3)}
	for i := range count {
		meshes[0].Recv(op)
		if err := wait(t, meshes[0], op); err != nil || op.Buf[0] != byte(i) || op.Buf[1] != byte(i>>8) || op.Buf[2] != byte(i>>16) {
			t.Fatalf("message %d: %v, %v", i, op.Buf, err)
		}
	}
	for i := range sends {
		if err := wait(t, meshes[1], &sends[i]); err != nil {
			t.Fatalf("send %d: %v", i, err)
		}
	}
}

// TestWindowsOfDifferentSize: each rank says what it holds, and the other one goes by that.
func TestWindowsOfDifferentSize(t *testing.T) {
	meshes := connectWith(t, 2, nil, func(c *Config) { c.Window = (4 + 12*c.Rank) * eagerMax })
	for rank, m := range meshes {
		other := meshes[1-rank]
		for i := range 40 {
			send, recv := &transport.Op{Peer: 1 - rank, Slot: 1, Buf: bytes.Repeat([]byte{byte(i)}, eagerMax)},
				&transport.Op{Peer: rank, Slot: 1, Buf: make([]byte, eagerMax)}
			m.Send(send)
			other.Recv(recv)
			if err := errors.Join(wait(t, other, recv), wait(t, m, send)); err != nil || recv.Buf[0] != byte(i) {
				t.Fatalf("message %d of rank %d: %v", i, rank, err)
			}
		}
	}
}
