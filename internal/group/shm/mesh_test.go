// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

var _ transport.Mesh = (*Mesh)(nil)

func messageContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestMessagesMatchInOrder posts random messages between all pairs on a few slots, in any order, and waits for them in
// any order from several goroutines.
func TestMessagesMatchInOrder(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{2, 3, 5} {
		t.Run(strconv.Itoa(ranks), func(t *testing.T) {
			t.Parallel()
			engines := world(t, ranks, func(c *Config) { c.Arena = pageSize })
			r := rand.New(rand.NewPCG(uint64(ranks), 5))
			ctx := messageContext(t)
			type post struct {
				op   *transport.Op
				want []byte // of a receive
			}
			posts := make([][]post, ranks)
			for from := range ranks {
				for to := range ranks {
					if from == to {
						continue
					}
					for range 15 {
						size := []int{0, 1, 100, 8 << 10, 8<<10 + 1, 40 << 10, 300 << 10}[r.IntN(7)]
						data, slot := random(r, size), uint64(r.IntN(3))
						posts[from] = append(posts[from], post{op: &transport.Op{Peer: to, Slot: slot, Buf: data}})
						posts[to] = append(posts[to],
							post{&transport.Op{Peer: from, Slot: slot, Buf: make([]byte, size+r.IntN(10))}, append([]byte{}, data...)})
					}
				}
			}
			// Shuffle, but keep the order of sends and of receives of each pair and slot.
			for rank := range posts {
				order := r.Perm(len(posts[rank]))
				type class struct {
					peer int
					slot uint64
					recv bool
				}
				queues := map[class][]post{}
				classOf := func(p post) class { return class{p.op.Peer, p.op.Slot, p.want != nil} }
				for _, p := range posts[rank] {
					queues[classOf(p)] = append(queues[classOf(p)], p)
				}
				shuffled := make([]post, 0, len(order))
				for _, i := range order {
					k := classOf(posts[rank][i])
					shuffled = append(shuffled, queues[k][0])
					queues[k] = queues[k][1:]
				}
				posts[rank] = shuffled
			}
			errs := each(engines, func(e *Engine) error {
				m := e.mesh
				mine := posts[e.rank]
				var wg sync.WaitGroup
				failures := make(chan error, len(mine))
				for i, p := range mine {
					if p.want != nil {
						m.Recv(p.op)
					} else {
						m.Send(p.op)
					}
					if i%3 == 0 {
						wg.Go(func() { failures <- m.Wait(ctx, p.op) })
					}
				}
				wg.Wait()
				for _, m0 := range slices.Backward(mine) {
					if err := m.Wait(ctx, m0.op); err != nil {
						return err
					}
				}
				close(failures)
				for err := range failures {
					if err != nil {
						return err
					}
				}
				return nil
			})
			for rank, err := range errs {
				if err != nil {
					t.Fatalf("rank %d: %v", rank, err)
				}
				for _, p := range posts[rank] {
					if p.want != nil && (p.op.N != len(p.want) || !bytes.Equal(p.op.Buf[:p.op.N], p.want) || p.op.Source != p.op.Peer) {
						t.Fatalf("rank %d: %d bytes from %d, want %d from %d", rank, p.op.N, p.op.Source, len(p.want), p.op.Peer)
					}
				}
			}
		})
	}
}

func TestReceiveFromAny(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	ctx := messageContext(t)
	for _, size := range []int{10, 100 << 10} {
		from := []int{1, 2}
		if size == 10 {
			from = nil // all others
		}
		errs := each(engines, func(e *Engine) error {
			m := e.mesh
			if e.rank != 0 {
				op := &transport.Op{Peer: 0, Slot: 4, Buf: bytes.Repeat([]byte{byte(e.rank)}, size)}
				m.Send(op)
				return m.Wait(ctx, op)
			}
			seen := 0
			for range 2 {
				op := &transport.Op{Peer: transport.AnyPeer, From: from, Slot: 4, Buf: make([]byte, size)}
				m.Recv(op)
				if err := m.Wait(ctx, op); err != nil {
					return err
				}
				if op.N != size || int(op.Buf[size-1]) != op.Source {
					return fmt.Errorf("%d bytes of %d from %d", op.N, op.Buf[0], op.Source)
				}
				seen += op.Source
			}
			if seen != 3 {
				return fmt.Errorf("the sources add up to %d", seen)
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}

func TestTooLongIsAnError(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	for _, size := range []int{10, 100 << 10} {
		for _, early := range []bool{false, true} {
			send := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, size)}
			recv := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, size-1)}
			if early {
				b.Recv(recv)
				a.Send(send)
			} else {
				a.Send(send)
				b.Recv(recv)
			}
			if err := b.Wait(ctx, recv); !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "rank 0") {
				t.Errorf("%d bytes: %v", size, err)
			}
			if err := a.Wait(ctx, send); size > a.eager && !errors.Is(err, cohort.Mismatch) {
				t.Errorf("the sender of %d bytes: %v", size, err)
			}
		}
	}
	// The pair still works.
	send, recv := &transport.Op{Peer: 1, Slot: 1, Buf: []byte("x")}, &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 1)}
	b.Recv(recv)
	a.Send(send)
	if err := errors.Join(a.Wait(ctx, send), b.Wait(ctx, recv)); err != nil || recv.Buf[0] != 'x' {
		t.Error(err)
	}
}

func TestWithdrawAndFail(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	m := engines[0].mesh
	op := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
	m.Recv(op)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := m.Wait(ctx, op); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if !m.Cancel(op) || m.Cancel(op) {
		t.Error("Cancel of a pending receive, then again")
	}
	if err := m.Wait(t.Context(), op); !errors.Is(err, cohort.Aborted) {
		t.Errorf("%v", err)
	}
	anyOp := &transport.Op{Peer: transport.AnyPeer, From: []int{1}, Slot: 1, Buf: make([]byte, 1)}
	m.Recv(anyOp)
	m.Recv(op)
	cause := errors.New("the group failed")
	m.Fail(cause)
	for _, o := range []*transport.Op{op, anyOp} {
		if err := m.Wait(t.Context(), o); !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
	}
	m.Send(op)
	if err := m.Wait(t.Context(), op); !errors.Is(err, cause) {
		t.Errorf("later: %v", err)
	}
	for _, peer := range []int{0, 2, -7} {
		bad := &transport.Op{Peer: peer}
		other := engines[1].mesh
		other.Send(bad)
		if err := other.Wait(t.Context(), bad); peer != 0 && !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("peer %d: %v", peer, err)
		}
	}
}

// TestDriverIsWoken: a goroutine that drives the mesh, and sleeps, is woken at once when its message was withdrawn or its deadline passed.
func TestDriverIsWoken(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(m *Mesh, op *transport.Op, cancel func()){
		"withdrawn": func(m *Mesh, op *transport.Op, _ func()) { m.Cancel(op) },
		"canceled":  func(_ *Mesh, _ *transport.Op, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := world(t, 2, nil)[0].mesh
			m.slice = time.Hour
			ctx, cancel := context.WithCancel(messageContext(t))
			defer cancel()
			op := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
			m.Recv(op)
			woken := make(chan error, 1)
			go func() { woken <- m.Wait(ctx, op) }()
			bell := m.engine.seg.bell(0)
			testkit.Until(t, "the driver sleeps", func() bool { return atomic.LoadUint32(&bell.sleepers) > 0 })
			time.Sleep(2 * sleepSlice) // and has slept for long
			end(m, op, cancel)
			select {
			case err := <-woken:
				if !errors.Is(err, cohort.Aborted) && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Error("it sleeps")
				_ = m.Close() // wakes it
				<-woken
			}
		})
	}
}

// TestMessagesOfALeaver: what a rank sent before it left can still be taken, then the receives fail.
func TestMessagesOfALeaver(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	send := &transport.Op{Peer: 0, Slot: 9, Buf: []byte("bye")}
	engines[1].mesh.Send(send)
	_ = engines[1].Close()
	m := engines[0].mesh
	recv := &transport.Op{Peer: 1, Slot: 9, Buf: make([]byte, 8)}
	m.Recv(recv)
	if err := m.Wait(ctx, recv); err != nil || string(recv.Buf[:recv.N]) != "bye" {
		t.Errorf("%v", err)
	}
	for range 2 {
		m.Recv(recv)
		if err := m.Wait(ctx, recv); !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%v", err)
		}
	}
	m.Send(send)
	if err := m.Wait(ctx, send); !errors.Is(err, cohort.InvalidArgument) && !errors.Is(err, cohort.PeerLost) {
		t.Errorf("%v", err)
	}
	waiting := &transport.Op{Peer: transport.AnyPeer, From: []int{1}, Slot: 3}
	m.Recv(waiting)
	if err := m.Wait(ctx, waiting); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("%v", err)
	}
}

// TestOfferOfALeaver: a large message that a rank had offered when it left never arrives. Receives for it end at once; one from
// any rank waits for the ranks that are there.
func TestOfferOfALeaver(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	m, large := engines[0].mesh, engines[0].mesh.eager+1
	for _, op := range []*transport.Op{
		{Slot: 5, Buf: make([]byte, large)},
		{Slot: 5, Buf: []byte("later")},
		{Slot: 6, Buf: []byte("bye")},
	} {
		engines[1].mesh.Send(op)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	receive := func(peer int, from []int, slot uint64) (*transport.Op, error) {
		op := &transport.Op{Peer: peer, From: from, Slot: slot, Buf: make([]byte, large)}
		m.Recv(op)
		return op, m.Wait(ctx, op)
	}
	if _, err := receive(1, nil, 6); err != nil { // the offer arrived before it
		t.Fatal(err)
	}
	_ = engines[1].Close()
	if _, err := receive(1, nil, 7); !errors.Is(err, cohort.PeerLost) {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := receive(1, nil, 5); !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("from the rank that left: %v", err)
		}
		if _, err := receive(transport.AnyPeer, []int{1}, 5); !errors.Is(err, cohort.PeerLost) {
			t.Errorf("from any of the ranks that left: %v", err)
		}
	}
	engines[2].mesh.Send(&transport.Op{Slot: 5, Buf: []byte("here")})
	if op, err := receive(transport.AnyPeer, nil, 5); err != nil || op.Source != 2 {
		t.Errorf("from any rank: rank %d, %v", op.Source, err)
	}
}

// TestKeeperFinishesOperationsWithoutAWaiter: a large message arrives although the receiver has not called Wait yet.
func TestKeeperFinishesOperationsWithoutAWaiter(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	recv := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 2<<20)}
	engines[1].mesh.Recv(recv)
	send := &transport.Op{Peer: 1, Slot: 2, Buf: bytes.Repeat([]byte{7}, 2<<20)}
	engines[0].mesh.Send(send)
	if err := engines[0].mesh.Wait(ctx, send); err != nil {
		t.Fatal(err)
	}
	if err := engines[1].mesh.Wait(ctx, recv); err != nil || recv.N != 2<<20 || recv.Buf[2<<20-1] != 7 {
		t.Fatal(err, recv.N)
	}
}

// TestUnexpectedMessagesAreBounded floods a rank that receives nothing: memory stays bounded, and nothing is lost.
func TestUnexpectedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	const count = 3000 // 24 MB
	ops := make([]*transport.Op, count)
	for i := range ops {
		ops[i] = &transport.Op{Peer: 1, Slot: 1, Buf: bytes.Repeat([]byte{byte(i)}, 8<<10)}
		a.Send(ops[i])
	}
	// Something else makes b drain its ring.
	probe := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)}
	b.Recv(probe)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_ = b.Wait(short, probe)
	if held := heldBy(b.mu.peers[0], b); held > shmring.WindowSize || held == 0 {
		t.Errorf("%d bytes are held", held)
	}
	for i := range ops {
		op := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 8<<10)}
		b.Recv(op)
		if err := b.Wait(ctx, op); err != nil || op.Buf[0] != byte(i) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	for _, op := range ops {
		if err := a.Wait(ctx, op); err != nil {
			t.Fatal(err)
		}
	}
}

// heldBy is the memory of the unexpected messages from a rank.
func heldBy(p *meshPeer, m *Mesh) (held int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := p.inbox.Head; e != nil; e = e.Next {
		held += cap(e.Data)
	}
	return held
}

// TestSmallUnexpectedMessagesTakeLittle: an early byte must not occupy the room of the longest eager message.
func TestSmallUnexpectedMessagesTakeLittle(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	const count = 2000
	for range count {
		a.Send(&transport.Op{Peer: 1, Slot: 1, Buf: []byte{1}})
	}
	last := &transport.Op{Peer: 1, Slot: 2, Buf: []byte{2}}
	a.Send(last)
	recv := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)}
	b.Recv(recv)
	if err := b.Wait(ctx, recv); err != nil {
		t.Fatal(err)
	}
	if held := heldBy(b.mu.peers[0], b); held > count*512 {
		t.Errorf("%d messages of one byte take %d bytes", count, held)
	}
}

// TestAllOfALeaverCanBeTaken: what a rank has sent before it left can be taken, up to the bound of unexpected messages.
func TestAllOfALeaverCanBeTaken(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx := messageContext(t)
	a, b := engines[0].mesh, engines[1].mesh
	probe := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)} // so that b reads its ring
	b.Recv(probe)
	for i := range shmring.WindowMessages {
		op := &transport.Op{Peer: 1, Slot: 1, Buf: []byte{byte(i)}}
		a.Send(op)
		if err := a.Wait(ctx, op); err != nil {
			t.Fatal(err)
		}
	}
	_ = engines[0].Close()
	if err := b.Wait(ctx, probe); !errors.Is(err, cohort.PeerLost) {
		t.Fatal(err)
	}
	for i := range shmring.WindowMessages {
		op := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 1)}
		b.Recv(op)
		if err := b.Wait(ctx, op); err != nil || op.Buf[0] != byte(i) {
			t.Fatalf("message %d of %d: %v", i, shmring.WindowMessages, err)
		}
	}
}

// TestContextEndsAWaitInTraffic: the end of a context is seen although the bell never stops ringing.
func TestContextEndsAWaitInTraffic(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	m := engines[1].mesh
	bell := engines[0].seg.bell(1)
	var wg sync.WaitGroup
	defer wg.Wait()
	stop, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for range 2 { // two, in case one of them loses its core
		wg.Go(func() {
			for stop.Err() == nil {
				atomic.AddUint32(&bell.rings, 1)
			}
		})
	}
	short, cancelShort := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancelShort()
	op := &transport.Op{Peer: 0, Slot: 2, Buf: make([]byte, 1)}
	m.Recv(op)
	if err := m.Wait(short, op); !errors.Is(err, context.DeadlineExceeded) || stop.Err() != nil {
		t.Errorf("%v; the bell still rings: %v", err, stop.Err() == nil)
	}
}

// TestFailureOfTheGroupEndsMessages: a rank that waits for a message of one rank learns that another abandoned the group.
func TestFailureOfTheGroupEndsMessages(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	ctx := messageContext(t)
	op := &transport.Op{Peer: 2, Slot: 1, Buf: make([]byte, 1)}
	engines[1].mesh.Recv(op)
	time.AfterFunc(30*time.Millisecond, func() { engines[0].Fail(errors.New("deadline passed")) })
	err := engines[1].mesh.Wait(ctx, op)
	if !errors.Is(err, cohort.Aborted) || !strings.Contains(err.Error(), "rank 0") || !strings.Contains(err.Error(), "deadline passed") {
		t.Error(err)
	}
}

func TestMessagesAllocateNothing(t *testing.T) {
	engines := world(t, 2, nil)
	ctx := t.Context()
	done := make(chan error, 1)
	turn := func(m *Mesh, send, recv *transport.Op) error {
		m.Recv(recv)
		m.Send(send)
		if err := m.Wait(ctx, send); err != nil {
			return err
		}
		return m.Wait(ctx, recv)
	}
	for _, size := range []int{4, 256 << 10} {
		go func() {
			m, send, recv := engines[1].mesh, &transport.Op{Buf: make([]byte, size)}, &transport.Op{Buf: make([]byte, size)}
			for range 101 {
				if err := turn(m, send, recv); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		send, recv := &transport.Op{Peer: 1, Buf: make([]byte, size)}, &transport.Op{Peer: 1, Buf: make([]byte, size)}
		allocations := testing.AllocsPerRun(100, func() {
			if err := turn(engines[0].mesh, send, recv); err != nil {
				t.Error(err)
			}
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if allocations > 0 {
			t.Errorf("%v allocations per message of %d bytes", allocations, size)
		}
	}
}
