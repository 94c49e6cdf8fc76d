// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// sender sends one request in the pieces that a driver reads.
type sender struct {
	conn *Conn
	left []byte
}

func (b *bench) sender(request []byte) *sender { return &sender{b.dial(wire.V), request} }

// push sends the next piece if the machine may be given one.
func (s *sender) push(b *bench) {
	if n := min(len(s.left), b.readSize(s.conn)); n > 0 && !s.conn.Paused() {
		b.m.Receive(s.conn, s.left[:n])
		s.left = s.left[n:]
	}
}

// pass lets time pass in turns.
func (b *bench) pass(d time.Duration) {
	for ; d > 0; d -= 100 * time.Millisecond {
		b.m.Tick(b.m.clock.now + int64(min(d, 100*time.Millisecond)))
		b.m.Resume()
		b.m.Admit()
		b.m.Dirty()
	}
}

// The process that serves can stand still for seconds on a busy machine. What its clients sent meanwhile lies in their
// sockets, so that is not a time in which they sent nothing.
func TestTimeWithoutTurnsDoesNotCount(t *testing.T) {
	set := wire.AppendSet(nil, wire.V, "/honest", make([]byte, 1<<20))
	for _, most := range []int64{32 << 20, 64 << 20} { // where the part for requests is full, and where it is nearly so
		for at := 1; at < 16; at++ {
			t.Run(fmt.Sprintf("%d MiB, piece %d", most>>20, at), func(t *testing.T) {
				limits := hostileLimits
				limits.Memory = most
				b := newBench(limits)
				honest := b.sender(set)
				for range at {
					honest.push(b)
				}
				half := wire.AppendSet(nil, wire.V, "/half", make([]byte, 1<<20))
				attackers := make([]*sender, 200)
				for i := range attackers {
					attackers[i] = b.sender(half[:65<<10+i*4<<10])
				}
				for round := range 400 {
					step := time.Millisecond
					if round == 20 {
						step = 3 * time.Second // no client looks
					}
					b.m.Tick(b.m.clock.now + int64(step))
					for _, a := range attackers { // their events come first
						a.push(b)
					}
					b.m.Resume()
					b.m.Admit()
					if round >= 20 {
						honest.push(b)
					}
					if held := b.m.memory(); held > limits.Memory {
						t.Fatalf("%d bytes are held", held)
					}
					if err := honest.conn.Cut(); err != nil {
						t.Fatalf("an honest client was cut in round %d with %d bytes left to send: %v", round, len(honest.left), err)
					}
				}
				for steps := 0; b.m.table.Find([]byte("/honest")) == nil; steps++ {
					b.pass(100 * time.Millisecond)
					honest.push(b)
					if honest.conn.Cut() != nil || steps > 100 {
						t.Fatalf("cut: %v, %d bytes left after ten seconds", honest.conn.Cut(), len(honest.left))
					}
				}
			})
		}
	}
}

// Many honest clients that store large values at once, more than there is room for, are served one after the other. No client
// is cut.
func TestCrowdOfSendersIsServedInTurn(t *testing.T) {
	keys, values := make([]string, 300), make([][]byte, 300)
	for i := range keys {
		keys[i], values[i] = fmt.Sprint("/key", i), make([]byte, 1<<10)
	}
	for name, request := range map[string][]byte{
		"set":       wire.AppendSet(nil, wire.V, "/same", make([]byte, 1<<20)),
		"multi_set": wire.AppendMultiSet(nil, wire.V, keys, values),
		"native": append(wire.AppendUpgrade(nil),
			frame(1, func(f []byte) []byte { return wire.AppendSet(f, wire.Native, "/same", make([]byte, 1<<20)) })...),
		"too large for its part": wire.AppendCompareSet(nil, wire.V, "/same", make([]byte, 3<<20), make([]byte, 3<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(hostileLimits)
			crowd := make([]*sender, attackersOf(100))
			for i := range crowd {
				crowd[i] = b.sender(request)
			}
			left := len(crowd)
			for round := 0; left > 0; round++ {
				b.m.Tick(b.m.clock.now + int64(10*time.Millisecond))
				left = 0
				for i, s := range crowd {
					s.push(b)
					if n := s.conn.Owed(); n > 0 {
						b.m.Sent(s.conn, n)
					}
					if err := s.conn.Cut(); err != nil {
						t.Fatalf("client %d was cut: %v", i, err)
					}
					if len(s.left) > 0 {
						left++
					}
				}
				b.m.Resume()
				b.m.Admit()
				b.m.Dirty()
				if held := b.m.memory(); held > b.m.config.Limits.Memory {
					t.Fatalf("%d bytes are held", held)
				}
				if round > 100_000 {
					t.Fatalf("%d are not served", left)
				}
			}
			if b.m.Queued() {
				t.Error("a client still waits")
			}
		})
	}
}

// Attackers that begin a large request, leave it, and come again when they are cut do not keep out a client from elsewhere,
// and one from their own host has its turn, too.
func TestHalvesThatComeAgain(t *testing.T) {
	for host, patience := range map[string]time.Duration{"10.0.0.8:1": 10 * time.Second, "10.0.0.1:1": 3 * time.Minute} {
		t.Run(host, func(t *testing.T) {
			b := newBench(hostileLimits)
			half := wire.AppendSet(nil, wire.V, "/half", make([]byte, 1<<20))
			attackers := make([]*sender, attackersOf(200))
			attack := func() {
				for i, a := range attackers {
					if a == nil || a.conn.Cut() != nil {
						attackers[i] = b.sender(half[:65<<10+i*4<<10])
						attackers[i].conn.Peer = fmt.Sprintf("10.0.0.%d:%d", i%4, i)
					}
					attackers[i].push(b)
				}
				if held := b.m.memory(); held > b.m.config.Limits.Memory {
					t.Fatalf("%d bytes are held", held)
				}
			}
			for range 20 {
				attack()
			}
			for round := range 2 {
				honest := b.sender(append(bytes.Clone(half), wire.AppendPing(nil, wire.V, 7)...))
				honest.conn.Peer = host
				start := b.m.clock.now
				for honest.conn.Owed() == 0 {
					b.pass(20 * time.Millisecond)
					attack()
					honest.push(b)
					if took := time.Duration(b.m.clock.now - start); honest.conn.Cut() != nil || took > patience {
						t.Fatalf("round %d: cut: %v, %d bytes left after %v", round, honest.conn.Cut(), len(honest.left), took)
					}
				}
				t.Logf("served after %v", time.Duration(b.m.clock.now-start))
				b.m.Close(honest.conn)
			}
		})
	}
}

// Those that leave while they wait for room are forgotten.
func TestSendersThatLeaveAreForgotten(t *testing.T) {
	b := newBench(hostileLimits)
	half := wire.AppendSet(nil, wire.V, "/half", make([]byte, 1<<20))
	for range 40 {
		b.sender(half[:8<<10]).push(b)
	}
	for range 10_000 {
		s := b.sender(half[:8<<10])
		if s.push(b); !s.conn.Paused() {
			t.Fatal("there is room")
		}
		b.m.Close(s.conn)
		if n := b.m.admission.requests.Len(); n > 200 {
			t.Fatalf("%d are remembered", n)
		}
	}
}
