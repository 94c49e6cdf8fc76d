// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// conns returns both ends of a TCP connection.
func conns(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	done := make(chan struct{})
	go func() { b, _ = l.Accept(); close(done) }()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	<-done
	return a, b
}

func start(t *testing.T, ca, cb net.Conn, a, b Config) (x, y *Link) {
	t.Helper()
	a.Identity, b.Identity = Identity{"a", 1, 11}, Identity{"b", 2, 22}
	a.Dialled, a.OnFrame, b.OnFrame = true, matching(a.OnFrame), matching(b.OnFrame)
	var wg sync.WaitGroup
	var ex, ey error
	wg.Go(func() { x, ex = Start(ca, nil, a) })
	wg.Go(func() { y, ey = Start(cb, nil, b) })
	wg.Wait()
	if ex != nil || ey != nil {
		t.Fatal(ex, ey)
	}
	t.Cleanup(func() { _ = x.Close(); _ = y.Close() })
	return x, y
}

func ignore(*Link, *Frame) {}

func pair(t *testing.T, a, b Config) (x, y *Link) {
	t.Helper()
	ca, cb := conns(t)
	return start(t, ca, cb, a, b)
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>9)
	}
	return b
}

func TestCallsBothWays(t *testing.T) {
	for name, connect := range map[string]func(*testing.T) (net.Conn, net.Conn){
		"tcp":  conns,
		"pipe": func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() }, // no file descriptor: the flusher writes all
	} {
		t.Run(name, func(t *testing.T) {
			ca, cb := connect(t)
			x, y := start(t, ca, cb, Config{OnFrame: echo}, Config{OnFrame: echo})
			if x.Peer() != (Identity{"b", 2, 22}) || y.Peer() != (Identity{"a", 1, 11}) {
				t.Fatalf("hellos %v and %v", x.Peer(), y.Peer())
			}
			var wg sync.WaitGroup
			for i, l := range []*Link{x, y, x, y, x, y} {
				wg.Go(func() {
					for k, size := range []int{0, 1, 100, inline, inline + 1, 200_000, 3 << 20} {
						payload := bytesOf(i + size%70_000)
						s := tensor.WrapStorage(bytesOf(size), "test", nil)
						small := tensor.WrapStorage(bytesOf(k), "test", nil)
						f, err := call(within(t), l, &Frame{Type: 0x102, Payload: payload, Storages: []*tensor.Storage{s, small}})
						if err != nil {
							t.Error(err)
							return
						}
						got, _ := f.Storages[0].Bytes()
						tail, _ := f.Storages[1].Bytes()
						if !bytes.Equal(f.Payload, payload) || !bytes.Equal(got, bytesOf(size)) || !bytes.Equal(tail, bytesOf(k)) {
							t.Errorf("%d bytes came back different", size)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestFramesKeepTheirOrder sends small and large frames from one goroutine while others send too.
func TestFramesKeepTheirOrder(t *testing.T) {
	var mu sync.Mutex
	next := map[uint8]uint64{}
	var bad, count atomic.Int64
	done := make(chan struct{})
	const senders, frames = 4, 300
	x, _ := pair(t, Config{OnFrame: ignore}, Config{OnFrame: func(_ *Link, f *Frame) {
		mu.Lock()
		if f.ID != next[f.Flags] || len(f.Payload) != int(f.ID*f.ID%40_000) || !bytes.Equal(f.Payload, bytesOf(len(f.Payload))) {
			bad.Add(1)
		}
		next[f.Flags]++
		mu.Unlock()
		if count.Add(1) == senders*frames {
			close(done)
		}
	}})
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range uint64(frames) {
				if err := x.Send(within(t), &Frame{
					Type: FirstAgentType, Flags: uint8(s), ID: i,
					Payload: bytesOf(int(i * i % 40_000)),
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%d of %d frames", count.Load(), senders*frames)
	}
	if bad.Load() > 0 {
		t.Errorf("%d frames out of order or damaged", bad.Load())
	}
}

func TestHeaderFieldsTravel(t *testing.T) {
	got := make(chan *Frame, 1)
	x, _ := pair(t, Config{OnFrame: ignore}, Config{OnFrame: func(_ *Link, f *Frame) { got <- f }})
	want := &Frame{
		Type: FirstAgentType + 5, Flags: 9, ID: 77, Deadline: 3 * time.Second, Trace: []byte("0123456789abcdef01234567!"),
		Forks: []Fork{{Owner: 1, RRefOn: 2, ForkOn: 3, Parent: -4, RRef: 1 << 40, Fork: -5}}, Payload: []byte("p"),
	}
	if err := x.Send(within(t), want); err != nil {
		t.Fatal(err)
	}
	f := <-got
	want.Incarnation, want.BufferEmpty = 11, true
	if diff := cmp.Diff(want, f, cmpopts.EquateEmpty()); diff != "" {
		t.Fatal(diff)
	}
}

// TestSilentPeerIsFound stops one side without closing anything, as SIGSTOP or a cut cable does.
func TestSilentPeerIsFound(t *testing.T) {
	ca, cb := conns(t)
	closed := make(chan error, 1)
	if _, err := cb.Write(Identity{"dead", 2, 1}.opening()); err != nil {
		t.Fatal(err)
	}
	l, err := Start(ca, nil, Config{
		OnFrame: matching(ignore), Heartbeat: 20 * time.Millisecond, Limit: 100 * time.Millisecond,
		OnClose: func(_ *Link, err error) { closed <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(); _ = cb.Close() }()
	begin := time.Now()
	if _, err := call(within(t), l, &Frame{Type: 0x102}); !errors.Is(err, cohort.PeerLost) {
		t.Fatalf("call: %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("found after %v", took)
	}
	if err := <-closed; !errors.Is(err, cohort.PeerLost) {
		t.Errorf("OnClose: %v", err)
	}
	if err := l.Send(within(t), &Frame{Type: 0x102}); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("send afterwards: %v", err)
	}
}

func TestIdleLinkStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{OnFrame: echo, Heartbeat: time.Second, Limit: 10 * time.Second}
		ca, cb := net.Pipe()
		x, y := start(t, ca, cb, cfg, cfg)
		defer func() { _ = x.Close(); _ = y.Close() }()
		before := x.reads.Load()
		time.Sleep(time.Hour)
		if _, err := call(t.Context(), x, &Frame{Type: 0x102}); err != nil {
			t.Fatal(err)
		}
		if n := x.reads.Load() - before; n < 3000 {
			t.Errorf("%d heartbeats came in an hour", n)
		}
	})
}

func TestPeerThatDoesNotReadFillsTheBoundedQueue(t *testing.T) {
	block := make(chan struct{})
	x, _ := pair(t, Config{OnFrame: ignore, Limits: Limits{Queue: 1 << 20}}, Config{OnFrame: func(*Link, *Frame) { <-block }})
	defer close(block)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	sent := 0
	for {
		err := x.Send(ctx, &Frame{Type: FirstAgentType, Payload: make([]byte, 10_000)})
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if sent += 10_000; sent > 512<<20 {
			t.Fatal("the queue has no bound")
		}
	}
	// A large frame whose sender leaves does not block it either.
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	if err := x.Send(short, &Frame{Type: FirstAgentType, Payload: make([]byte, 1<<20)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("large frame: %v", err)
	}
}

func TestGoodbyeAndLateAnswers(t *testing.T) {
	release := make(chan struct{})
	x, y := pair(t, Config{OnFrame: ignore}, Config{OnFrame: func(l *Link, f *Frame) {
		go func() { <-release; _ = l.Send(context.Background(), &Frame{Type: 0x203, ID: f.ID}) }()
	}})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := call(ctx, x, &Frame{Type: 0x102}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("call: %v", err)
	}
	close(release) // the late answer goes to OnFrame, which ignores it
	if _, err := call(within(t), x, &Frame{Type: 0x102}); err != nil {
		t.Fatal(err)
	}
	_ = y.Close()
	<-x.Done()
	if err := x.Err(); !errors.Is(err, cohort.PeerLost) {
		t.Fatalf("after goodbye: %v", err)
	}
}

func TestGarbageEndsTheLink(t *testing.T) {
	good := Identity{"b", 2, 1}.opening()
	valid := (&Frame{Type: 0x102}).AppendHead(nil)
	change := func(at int, b ...byte) []byte {
		out := bytes.Clone(valid)
		copy(out[at:], b)
		return out
	}
	for name, data := range map[string][]byte{
		"http":            []byte("GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nUser-Agent: curl\r\n\r\n"),
		"out of step":     change(7, 0),
		"huge body":       change(0, 0xff, 0xff, 0xff, 0xff),
		"huge storages":   change(40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"many storages":   change(36, 0xff, 0xff, 0xff, 0xff),
		"past deadline":   change(24, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"second hello":    good,
		"ends in a frame": valid[:20],
	} {
		ca, cb := conns(t)
		if _, err := cb.Write(append(bytes.Clone(good), data...)); err != nil {
			t.Fatal(err)
		}
		l, err := Start(ca, nil, Config{OnFrame: ignore})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name == "ends in a frame" {
			_ = cb.Close()
		}
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the link lives on", name)
		}
		_ = l.Close()
		_ = cb.Close()
	}
	ca, cb := conns(t)
	go func() { _, _ = io.Copy(io.Discard, cb) }()
	_, _ = cb.Write(valid)
	if _, err := Start(ca, nil, Config{OnFrame: ignore}); err == nil {
		t.Error("a first frame that is not a hello was taken")
	}
	_ = cb.Close()
}

func TestFramesThatAreRefused(t *testing.T) {
	released, _ := tensor.NewStorage(8)
	released.Release()
	x, _ := pair(t, Config{OnFrame: ignore, Limits: Limits{Body: 1000, Message: 5000}}, Config{OnFrame: ignore})
	for name, c := range map[string]struct {
		f    *Frame
		code cohort.Code
	}{
		"long payload": {&Frame{Payload: make([]byte, 2000)}, cohort.TooLarge},
		"long storage": {&Frame{Storages: []*tensor.Storage{tensor.WrapStorage(make([]byte, 6000), "test", nil)}}, cohort.TooLarge},
		"long trace":   {&Frame{Trace: make([]byte, 65)}, cohort.InvalidArgument},
		"too late":     {&Frame{Deadline: -1}, cohort.DeadlineExceeded},
		"released":     {&Frame{Storages: []*tensor.Storage{released}}, cohort.InvalidArgument},
	} {
		if err := x.Send(within(t), c.f); !errors.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &Frame{
			Type: Type(rapid.Uint16().Draw(t, "type")), Flags: rapid.Byte().Draw(t, "flags"), ID: rapid.Uint64().Draw(t, "id"),
			Incarnation: rapid.Uint64().Draw(t, "incarnation"), Deadline: time.Duration(rapid.Int64Min(0).Draw(t, "deadline")),
			Trace: rapid.SliceOfN(rapid.Byte(), 0, maxTrace).Draw(t, "trace"), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "forks") {
			f.Forks = append(f.Forks, Fork{
				rapid.Int16().Draw(t, "o"), rapid.Int16().Draw(t, "r"), rapid.Int16().Draw(t, "f"), rapid.Int16().Draw(t, "p"),
				rapid.Int64().Draw(t, "rref"), rapid.Int64().Draw(t, "fork"),
			})
		}
		sizes := rapid.SliceOfN(rapid.IntRange(0, 100), 0, 4).Draw(t, "storages")
		for _, n := range sizes {
			f.Storages = append(f.Storages, tensor.WrapStorage(make([]byte, n), "test", nil))
		}
		b := append(f.AppendHead(nil), f.Payload...)
		h, err := ParseHeader(b, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		got, lengths, err := h.Parse(b[HeaderSize:])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sizes, lengths, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		f.Storages = nil
		if diff := cmp.Diff(f, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for i := range 3 {
		frame := &Frame{Type: 0x102, ID: uint64(i), Payload: []byte("payload"), Forks: make([]Fork, i), Trace: make([]byte, i)}
		for range i {
			frame.Storages = append(frame.Storages, tensor.WrapStorage(make([]byte, i), "test", nil))
		}
		f.Add(append(frame.AppendHead(nil), frame.Payload...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ParseHeader(data, Limits{Body: 1 << 20})
		if err != nil || int64(h.Body) > int64(len(data)-HeaderSize) {
			return
		}
		frame, lengths, err := h.Parse(data[HeaderSize : HeaderSize+int(h.Body)])
		if err != nil {
			return
		}
		total := uint64(0)
		for _, n := range lengths {
			total += uint64(n)
		}
		if total != h.Bytes {
			t.Fatalf("%d bytes of storages, %d announced", total, h.Bytes)
		}
		_, _, _ = parseHello(frame)
		if len(lengths) > 0 {
			return // their memory is not here
		}
		again := append(frame.AppendHead(nil), frame.Payload...)
		if !bytes.Equal(again, data[:len(again)]) {
			t.Fatalf("%x became %x", data[:len(again)], again)
		}
	})
}

func ExampleLink_Send() {
	a, b := net.Pipe()
	server := make(chan *Link)
	go func() {
		l, err := Start(b, nil, Config{Identity: Identity{Name: "server"}, OnFrame: func(l *Link, f *Frame) {
			go func() {
				_ = l.Send(context.Background(), &Frame{Type: 0x203, ID: f.ID, Payload: append([]byte("hello "), f.Payload...)})
			}()
		}})
		if err != nil {
			fmt.Println(err)
		}
		server <- l
	}()
	answers := make(chan *Frame, 1)
	l, err := Start(a, nil, Config{Identity: Identity{Name: "client"}, Dialled: true, OnFrame: func(_ *Link, f *Frame) { answers <- f }})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err = l.Send(context.Background(), &Frame{Type: 0x102, ID: 1, Payload: []byte("world")}); err != nil {
		fmt.Println(err)
		return
	}
	answer := <-answers
	fmt.Printf("%s says %s\n", l.Peer().Name, answer.Payload)
	_ = l.Close()
	_ = (<-server).Close()
	// Output: server says hello world
}
