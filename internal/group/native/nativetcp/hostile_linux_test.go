// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// withAttacker makes rank 0 of a group of two whose rank 1 is what the test writes to a socket.
func withAttacker(t *testing.T) (*Mesh, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan *Mesh, 1)
	go func() {
		m, failed := Connect(t.Context(), Config{Rank: 0, Size: 2, Group: [16]byte{9}, Listener: l, Peers: []string{l.Addr().String(), ""}})
		if failed != nil {
			t.Error(failed)
		}
		done <- m
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	hello := make([]byte, nativewire.HelloSize)
	(&nativewire.Hello{Version: nativewire.Version, Group: [16]byte{9}, From: 1, Size: 2, Window: defaultWindow, Lanes: 1}).Put(hello)
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	m := <-done
	if m == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = m.Close() })
	tcp, _ := c.(*net.TCPConn)
	return m, tcp
}

const (
	messageSlot = 5
	largeRoom   = 3 * eagerMax
	maxAttack   = 4 << 20 // what a busy machine makes and moves in no time
)

// posted starts operations of every kind with the attacker, and begins the collective or not.
func posted(m *Mesh, begun bool) []*transport.Op {
	slot := nativewire.CollectiveSlot(7)
	if begun {
		m.Begin(slot, nativewire.Call{Kind: collective.AllReduce, DType: tensor.Uint8, Bytes: largeRoom})
	}
	ops := []*transport.Op{
		{Peer: 1, Slot: messageSlot, Buf: make([]byte, 100)},
		{Peer: 1, Slot: messageSlot, Buf: make([]byte, largeRoom)},
		{Peer: transport.AnyPeer, Slot: messageSlot + 1, Buf: make([]byte, 100)},
		{Peer: 1, Slot: slot, Buf: make([]byte, 100)},
		{Peer: 1, Slot: slot, Buf: make([]byte, largeRoom)},
	}
	for _, op := range ops {
		m.Recv(op)
	}
	for _, slot := range []uint64{messageSlot, slot} {
		for _, n := range []int{100, largeRoom} {
			op := &transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, n)}
			m.Send(op)
			ops = append(ops, op)
		}
	}
	return ops
}

// attack draws a few frames: most of them could be right, at another time or once.
func attack(choice *rand.Rand) []byte {
	pick := func(of ...uint64) uint64 { return of[choice.IntN(len(of))] }
	var all []byte
	for range 1 + choice.IntN(6) {
		h := nativewire.Header{
			Type: nativewire.Type(choice.IntN(10)), Flags: uint8(pick(0, 0, 0, 1, 2, 3, 0x80)),
			Length: uint32(pick(0, 0, 1, 100, eagerMax, largeRoom, nativewire.MaxPiece, 1<<31)),
			Credit: uint32(pick(0, 0, 0, 1, 100, defaultWindow, 1<<32-1)),
			Slot:   pick(0, messageSlot, messageSlot, messageSlot+1, nativewire.CollectiveSlot(7), nativewire.CollectiveSlot(7)+1, 1<<64-1),
			Total:  pick(0, 1, 100, eagerMax, largeRoom, 1<<32-1, 1<<64-1),
			Call: nativewire.Call{
				Kind: collective.Kind(pick(0, uint64(collective.AllReduce), 200)), DType: tensor.Uint8,
				Bytes: pick(0, largeRoom),
			},
		}
		frame := make([]byte, nativewire.HeaderSize)
		h.Put(frame)
		if h.Length <= nativewire.MaxPiece && choice.IntN(8) != 0 { // else the next frame is its payload
			frame = append(frame, make([]byte, h.Length)...)
		}
		for range pick(1, 1, 1, 2, 40) {
			if len(all) < maxAttack {
				all = append(all, frame...)
			}
		}
	}
	if choice.IntN(2) == 0 {
		all = all[:choice.IntN(len(all)+1)] // it dies inside a frame
	}
	return all
}

// TestHostileFrames: a rank sends frames that make no sense where they come, come again or end anywhere, in pieces, and goes away. Every
// operation of the other rank ends, and it holds no more than the window allows.
func TestHostileFrames(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			choice := rand.New(rand.NewPCG(seed, 5))
			begun, data, reads := choice.IntN(2) == 0, bytes.NewReader(attack(choice)), choice.IntN(2) == 0
			m, c := withAttacker(t)
			ops := posted(m, begun)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			go func() {
				if reads {
					go func() { _, _ = c.WriteTo(io.Discard) }()
				}
				_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
				for piece := make([]byte, data.Len()/1000+1+choice.IntN(1<<choice.IntN(20))); ; {
					n, err := data.Read(piece)
					if err == nil {
						_, err = c.Write(piece[:n])
					}
					if err != nil {
						break
					}
				}
				_ = c.Close()
			}()
			for i, op := range ops {
				if err := m.Wait(ctx, op); ctx.Err() != nil || err != nil && cohort.CodeOf(err) == cohort.Unknown {
					t.Errorf("operation %d: %v", i, err)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			held := 0
			for e := m.mu.conns[1].recvs.inbox.Head; e != nil; e = e.Next {
				held += cap(e.Data)
			}
			if held > 2*defaultWindow {
				t.Errorf("%d bytes are held", held)
			}
		})
	}
}
