// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/invariants"
	"github.com/cohort-dist/cohort/tensor"
)

// TestRoomIsNoticedByItsMaker: a caller that finds the queue full and drains it itself does not wait for another goroutine.
func TestRoomIsNoticedByItsMaker(t *testing.T) {
	got := make(chan struct{}, 5)
	x, _ := pair(t, Config{OnFrame: ignore, Limit: -1, Limits: Limits{Queue: 64}},
		Config{Limit: -1, OnFrame: func(*Link, *Frame) { got <- struct{}{} }})
	ctx := within(t)
	x.corked.Store(true) // as while further frames wait in the buffer of the reader
	for i := range 5 {
		if err := x.Post(ctx, &Frame{Type: FirstAgentType, Payload: bytesOf(40)}); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	x.uncork()
	for i := range 5 {
		select {
		case <-got:
		case <-ctx.Done():
			t.Fatalf("%d of 5 frames arrived", i)
		}
	}
}

// TestPingsWithoutReading: a peer that asks for signs of life and does not read them makes nothing grow.
func TestPingsWithoutReading(t *testing.T) {
	bubble(t, Config{OnFrame: ignore}, func(t *testing.T, l *Link, _ *counted, far net.Conn) {
		t.Helper()
		ping := (&Frame{Type: pingFrame}).AppendHead(nil)
		for range 200 {
			if _, err := far.Write(bytes.Repeat(ping, 100)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		l.out.Lock()
		queued := len(l.out.small)
		l.out.Unlock()
		if queued > 1<<10 {
			t.Errorf("%d bytes of answers to pings are queued", queued)
		}
		go drain(far)
		synctest.Wait()
		if err := l.Send(context.Background(), &Frame{Type: FirstAgentType}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestUnreadAnswersAreBounded: the bytes of answers that wait for a peer are bounded; what is over the bound is refused at
// once, and there is still room to say so. A single answer may be of any size.
func TestUnreadAnswersAreBounded(t *testing.T) {
	const size = 4 << 20
	bubble(t, Config{OnFrame: ignore, Limits: Limits{Waiting: 4 * size}}, func(t *testing.T, l *Link, _ *counted, far net.Conn) {
		t.Helper()
		done := make(chan error, 20)
		for range 20 {
			go func() { done <- l.Post(context.Background(), &Frame{Type: 0x203, Payload: make([]byte, size)}) }()
		}
		synctest.Wait()
		l.out.Lock()
		waiting := l.out.large
		l.out.Unlock()
		if waiting > 4*size {
			t.Errorf("%d bytes wait, the limit is %d", waiting, 4*size)
		}
		refused := 0
		for range 20 {
			if err := <-done; errors.Is(err, cohort.Exhausted) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		if refused != 16 {
			t.Errorf("%d answers were refused, want 16", refused)
		}
		if err := l.Post(context.Background(), &Frame{Type: 0x203, Payload: make([]byte, 1000)}); err != nil {
			t.Errorf("a small answer: %v", err)
		}
		go drain(far)
		synctest.Wait()
		if err := l.Post(context.Background(), &Frame{Type: 0x203, Payload: make([]byte, 9*size)}); err != nil {
			t.Errorf("one answer over the limit, alone: %v", err)
		}
	})
}

// TestLoadOfAGivenUpRequest: a request whose sender leaves during the write is still answered, and counts until then.
func TestLoadOfAGivenUpRequest(t *testing.T) {
	bubble(t, Config{OnFrame: ignore}, func(t *testing.T, l *Link, _ *counted, far net.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Send(ctx, &Frame{Type: 0x102, ID: 7, Payload: make([]byte, 1<<20)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the peer does not read, but the request was sent: %v", err)
		}
		if n := l.inFlight.Load(); n != 1 {
			t.Errorf("the load is %d while the request is under way", n)
		}
		go drain(far)
		if _, err := far.Write((&Frame{Type: 0x203, ID: 7}).AppendHead(nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := l.inFlight.Load(); n != 0 {
			t.Errorf("the load is %d after the answer", n)
		}
	})
}

// TestClaimedStorages: the announcement of storages costs the receiver next to nothing until they come.
func TestClaimedStorages(t *testing.T) {
	ca, cb := conns(t)
	defer func() { _ = cb.Close() }()
	if _, err := cb.Write(Identity{"b", 2, 22}.opening()); err != nil {
		t.Fatal(err)
	}
	var largest atomic.Int64
	l, err := Start(ca, nil, Config{Identity: Identity{"a", 1, 11}, OnFrame: ignore, Alloc: func(n int) (*tensor.Storage, error) {
		largest.Store(max(largest.Load(), int64(n)))
		return tensor.NewStorage(min(n, 128<<20))
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	f := (&Frame{Type: 0x102, Storages: []*tensor.Storage{tensor.WrapStorage(make([]byte, 1), "test", nil)}}).AppendHead(nil)
	const claim = 1 << 30
	binary.LittleEndian.PutUint64(f[40:], claim)         // all storages
	binary.LittleEndian.PutUint64(f[HeaderSize:], claim) // this one
	if _, err = cb.Write(append(f, make([]byte, 1000)...)); err != nil {
		t.Fatal(err)
	}
	_ = cb.Close()
	<-l.Done()
	if largest.Load() > 64<<20 {
		t.Errorf("%d bytes were allocated for 1000 that came", largest.Load())
	}
}

// TestLentTurnIsNotHandedOver: two goroutines would read the link.
func TestLentTurnIsNotHandedOver(t *testing.T) {
	var stopped atomic.Int64
	a := newAsker()
	onFrame := func(l *Link, f *Frame) {
		a.onFrame(l, f)
		if !f.Type.IsResponse() || l.turns.offered.Load() != l.Turn() {
			return
		}
		defer func() {
			if e := recover(); e != nil {
				if text, _ := e.(string); !invariants.Enabled || !strings.Contains(text, "offered the reader") {
					panic(e)
				}
			}
			stopped.Add(1)
		}()
		turn := l.Turn()
		l.Handover(turn)
		if l.Turn() != turn {
			t.Error("the turn went on")
		}
	}
	x, _ := pair(t, Config{OnFrame: ignore}, Config{OnFrame: echo})
	x.cfg.OnFrame = onFrame
	a.link = x
	for ctx := within(t); stopped.Load() == 0; {
		if _, err := a.ask(ctx, &Frame{}, true); err != nil {
			t.Fatal(err)
		}
	}
}

// hostile are bytes of a peer that has introduced itself: every type of frame, whole, cut short, and changed at every byte
// of its head.
func hostile() map[string][]byte {
	all := map[string][]byte{}
	types := map[string]Type{
		"hello": Hello, "ping": pingFrame, "pong": pongFrame, "goodbye": goodbyeFrame, "proof": proofFrame,
		"later version": 0x10ff, "request": 0x102,
		"response": 0x203, "wrapped": 0x10f, "agent": FirstAgentType, "control": FirstAgentType + 1, "zero": 0, "last": 0xffff,
	}
	for name, kind := range types {
		f := &Frame{
			Type: kind, ID: 1, Payload: []byte("payload"), Forks: make([]Fork, 1), Trace: []byte("t"),
			Storages: []*tensor.Storage{tensor.WrapStorage(make([]byte, 8), "test", nil)},
		}
		head := append(f.AppendHead(nil), f.Payload...)
		whole := append(bytes.Clone(head), make([]byte, 8)...)
		all[name] = whole
		all[name+", cut"] = whole[:len(whole)-3]
		for i := range HeaderSize + f.extension() {
			changed := bytes.Clone(whole)
			changed[i] ^= 0xff
			all[name+", changed at "+string(rune('a'+i/26))+string(rune('a'+i%26))] = changed
		}
	}
	return all
}

// TestHostileFrames sends all of them, one link each, before, between and after the frames of the hello: a link ends or goes
// on, and Close always joins it.
func TestHostileFrames(t *testing.T) {
	opening := Identity{"b", 2, 22}.opening()
	hello := Identity{"b", 2, 22}.frame(nonce{})
	half := len(hello.AppendHead(nil)) + len(hello.Payload)
	for name, data := range hostile() {
		for state, before := range map[string][]byte{"first": nil, "after the hello": opening[:half], "after the proof": opening} {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				go drain(far)
				sent := make(chan struct{})
				defer func() { _ = near.Close(); <-sent }()
				go func() {
					defer close(sent)
					_, _ = far.Write(append(bytes.Clone(before), data...))
					time.Sleep(time.Second) // of the bubble: all has been looked at
					_ = far.Close()
				}()
				l, err := Start(near, nil, Config{OnFrame: func(_ *Link, f *Frame) { f.Release() }, Limit: -1})
				if err != nil {
					if state == "after the proof" {
						t.Errorf("%s, %s: %v", name, state, err)
					}
					return
				}
				if state == "first" {
					t.Errorf("%s, %s: the link was started", name, state)
				}
				<-l.Done()
				if l.Err() == nil {
					t.Errorf("%s, %s: ended without a reason", name, state)
				}
				_ = l.Close()
			})
		}
	}
}

// FuzzLink gives a link any bytes behind the frames of its hello: it ends with a reason, and allocates little ahead.
func FuzzLink(f *testing.F) {
	all := hostile()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.Contains(name, "changed") {
			f.Add(all[name])
		}
	}
	opening := Identity{"b", 2, 22}.opening()
	f.Fuzz(func(t *testing.T, data []byte) {
		var largest atomic.Int64
		ended := make(chan error, 1)
		conn := &oneWay{left: append(bytes.Clone(opening), data...), pieces: func() int { return 1 << 20 }}
		l, err := Start(conn, nil, Config{
			Limit: -1, OnClose: func(_ *Link, err error) { ended <- err },
			OnFrame: func(l *Link, frame *Frame) {
				if frame.isRequest() {
					_ = l.Post(context.Background(), &Frame{Type: 0x203, ID: frame.ID})
				}
				frame.Release()
			},
			Alloc: func(n int) (*tensor.Storage, error) {
				largest.Store(max(largest.Load(), int64(n)))
				return tensor.NewStorage(min(n, 1<<20))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err = <-ended; err == nil {
			t.Fatal("it ended without a reason")
		}
		_ = l.Close()
		if largest.Load() > 64<<20 {
			t.Fatalf("%d bytes were allocated", largest.Load())
		}
	})
}
