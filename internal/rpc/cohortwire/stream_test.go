// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// The byte stream of a link: cut anywhere it gives the frames before the cut and nothing else, and it stays in step
// however the kernel takes and gives its bytes.

// script is a stream of frames of all shapes, and where each of them ends.
func script() (stream []byte, ends []int) {
	stream = Identity{"b", 2, 22}.opening()
	ends = append(ends, len(stream))
	sizes := []int{0, 1, 47, 48, 49, 300, 900}
	for i, n := range sizes {
		f := &Frame{Type: 0x102, ID: uint64(i), Payload: bytesOf(n), Deadline: time.Duration(i), Trace: bytesOf(i)}
		for k := range i {
			f.Storages = append(f.Storages, tensor.WrapStorage(bytesOf(sizes[k]), "test", nil))
			f.Forks = append(f.Forks, Fork{Owner: int16(k)})
		}
		stream = append(f.AppendHead(stream), f.Payload...)
		for k := range i {
			stream = append(stream, bytesOf(sizes[k])...)
		}
		ends = append(ends, len(stream))
	}
	return stream, ends
}

// oneWay is a connection on which bytes come in pieces.
type oneWay struct {
	net.Conn
	left   []byte
	pieces func() int
}

func (c *oneWay) Read(b []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), c.pieces())], c.left)
	c.left = c.left[n:]
	return n, nil
}

func (*oneWay) Write(b []byte) (int, error)      { return len(b), nil }
func (*oneWay) Close() error                     { return nil }
func (*oneWay) SetDeadline(time.Time) error      { return nil }
func (*oneWay) SetReadDeadline(time.Time) error  { return nil }
func (*oneWay) SetWriteDeadline(time.Time) error { return nil }

// TestCutAtEveryByte ends the stream after every one of its bytes.
func TestCutAtEveryByte(t *testing.T) {
	stream, ends := script()
	r := rand.New(rand.NewPCG(1, 2))
	for cut := range len(stream) + 1 {
		whole := 0
		for whole < len(ends) && ends[whole] <= cut {
			whole++
		}
		most := 1 + r.IntN(1+r.IntN(3000))
		conn := &oneWay{left: stream[:cut], pieces: func() int { return 1 + r.IntN(most) }}
		got := 0
		ended := make(chan error, 1)
		l, err := Start(conn, nil, Config{
			Identity: Identity{"a", 1, 11}, Limit: -1,
			OnFrame: func(_ *Link, f *Frame) {
				got++
				if f.ID != uint64(got-1) || len(f.Storages) != got-1 || !bytes.Equal(f.Payload, bytesOf(len(f.Payload))) {
					t.Errorf("cut at %d: frame %d is number %d, with %d storages", cut, got, f.ID, len(f.Storages))
				}
			},
			OnClose: func(_ *Link, err error) { ended <- err },
		})
		if whole == 0 {
			if err == nil || cohort.CodeOf(err) == cohort.Protocol {
				t.Fatalf("cut at %d, in the hello: %v", cut, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		err = <-ended
		if !errors.Is(err, cohort.PeerLost) || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if got != whole-1 {
			t.Fatalf("cut at %d: %d frames, want %d", cut, got, whole-1)
		}
		_ = l.Close()
	}
}

// TestHalfAWrite lets the kernel take a part of a frame, after every one of its bytes, while a large frame and further small
// ones come to the queue.
func TestHalfAWrite(t *testing.T) {
	if !rawSockets {
		t.Skip("frames are not written by their senders here")
	}
	got := make(chan *Frame, 16)
	x, _ := pair(t, Config{OnFrame: ignore, Limit: -1}, Config{Limit: -1, OnFrame: func(_ *Link, f *Frame) { got <- f }})
	ctx := within(t)
	large := bytesOf(inline + 1)
	send := func(id uint64, payload []byte) {
		if err := x.Post(ctx, &Frame{Type: FirstAgentType, ID: id, Payload: payload}); err != nil {
			t.Error(err)
		}
	}
	small := bytesOf(10)
	for taken := range HeaderSize + 3 + len(small) + 1 {
		x.out.Lock()
		if x.out.writing || !x.out.empty() {
			t.Fatal("the link is not at rest")
		}
		x.try.fn = func(fd uintptr) bool {
			x.try.fn = x.writeNow
			send(2, small)
			send(3, large)
			send(4, small)
			x.try.n, _ = rawWrite(fd, x.try.b[:taken])
			return true
		}
		x.out.Unlock()
		send(1, small)
		arrive(ctx, t, got, taken, small, small, large, small)
		for rest := false; !rest; { // the flusher has written all, and says so
			x.out.Lock()
			rest = !x.out.writing
			x.out.Unlock()
		}
	}
}

// arrive expects frames with these payloads, numbered from 1, after the kernel took some bytes of the first.
func arrive(ctx context.Context, t *testing.T, got <-chan *Frame, taken int, payloads ...[]byte) {
	t.Helper()
	for i, want := range payloads {
		select {
		case f := <-got:
			if f.ID != uint64(i+1) || !bytes.Equal(f.Payload, want) {
				t.Fatalf("%d bytes were taken: frame %d is number %d with %d bytes", taken, i+1, f.ID, len(f.Payload))
			}
		case <-ctx.Done():
			t.Fatalf("%d bytes were taken: frame %d does not come", taken, i+1)
		}
	}
}

// TestHalfALargeWrite does the same with a large frame, of which head and payload are two pieces.
func TestHalfALargeWrite(t *testing.T) {
	if !rawSockets {
		t.Skip("frames are not written by their senders here")
	}
	got := make(chan *Frame, 16)
	x, _ := pair(t, Config{OnFrame: ignore, Limit: -1}, Config{Limit: -1, OnFrame: func(_ *Link, f *Frame) { got <- f }})
	ctx := within(t)
	small, large := bytesOf(10), bytesOf(inline+1)
	const head = HeaderSize + 3
	for _, taken := range []int{0, 1, HeaderSize, head - 1, head, head + 1, head + len(large) - 1, head + len(large)} {
		written := make(chan uint64, 4)
		send := func(id uint64, payload []byte) {
			f := &Frame{Type: FirstAgentType, ID: id, Payload: payload, Written: func() { written <- id }}
			if err := x.Post(ctx, f); err != nil {
				t.Error(err)
			}
		}
		left, first := taken, true
		x.out.Lock()
		x.try.fn = func(fd uintptr) bool {
			if first {
				first = false
				send(2, small)
				send(3, large)
				send(4, small)
			}
			want := len(x.try.b)
			x.try.b = x.try.b[:min(want, left)]
			x.writeNow(fd)
			if left -= x.try.n; x.try.n < want || left == 0 {
				x.try.fn = x.writeNow
			}
			return true
		}
		x.out.Unlock()
		send(1, large)
		arrive(ctx, t, got, taken, large, small, large, small)
		told := map[uint64]bool{}
		for range 4 {
			select {
			case id := <-written:
				if told[id] {
					t.Errorf("%d bytes were taken: frame %d is written twice", taken, id)
				}
				told[id] = true
			case <-ctx.Done():
				t.Fatalf("%d bytes were taken: %v of the frames are known to be written", taken, told)
			}
		}
		for rest := false; !rest; { // the flusher has written all, and says so
			x.out.Lock()
			rest = !x.out.writing
			if rest && x.out.large != 0 {
				t.Errorf("%d bytes were taken: %d bytes count as waiting", taken, x.out.large)
			}
			x.out.Unlock()
		}
	}
}

var streams = flag.Uint64("cohortwire.streams", 2, "how many random streams TestStaysInStep sends")

// TestStaysInStep sends frames of all sizes from many sides at once over sockets that take and give a few bytes at a
// time, so that every way of writing meets every way of stopping in the middle.
func TestStaysInStep(t *testing.T) {
	for seed := range *streams {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			near, far := tightConns(t)
			left, right := tightConns(t)
			proxy(t, far, left, seed)
			var served atomic.Int64
			reply := func(l *Link, f *Frame) {
				served.Add(1)
				if f.Type != 0x102 {
					if !bytes.Equal(f.Payload, bytesOf(len(f.Payload))) {
						t.Errorf("a frame of %d bytes came different", len(f.Payload))
					}
					return
				}
				answer := &Frame{Type: 0x203, ID: f.ID, Payload: f.Payload, Storages: f.Storages}
				if err := l.Post(context.Background(), answer); err != nil && l.Err() == nil {
					t.Errorf("post: %v", err)
				}
			}
			x, y := start(t, near, right, Config{OnFrame: reply}, Config{OnFrame: reply})
			ctx := within(t)
			var wg sync.WaitGroup
			callers := 1 // callers write their own frames as long as there are few
			if seed%2 == 1 {
				callers = 4
			}
			for side, l := range []*Link{x, y} {
				for worker := range 3 {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(50*side+worker)))
						for range 300 {
							n := r.IntN(1500)
							if r.IntN(20) == 0 {
								n = sizeFor(r)
							}
							if err := l.Send(ctx, &Frame{Type: FirstAgentType, Payload: bytesOf(n)}); err != nil {
								t.Errorf("send: %v", err)
								return
							}
						}
					})
				}
			}
			for side, l := range []*Link{x, y} {
				for worker := range callers {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(10*side+worker)))
						for i := range 25 {
							payload := bytesOf(sizeFor(r))
							f := &Frame{Type: 0x102, Payload: payload}
							var want []int
							for range r.IntN(3) {
								n := sizeFor(r)
								want = append(want, n)
								f.Storages = append(f.Storages, tensor.WrapStorage(bytesOf(n), "test", nil))
							}
							got, err := call(ctx, l, f)
							if err != nil {
								t.Errorf("call %d of worker %d of side %d: %v", i, worker, side, err)
								return
							}
							same := bytes.Equal(got.Payload, payload) && len(got.Storages) == len(want)
							for k := range want {
								b, _ := got.Storages[k].Bytes()
								same = same && bytes.Equal(b, bytesOf(want[k]))
							}
							if !same {
								t.Errorf("call %d of worker %d of side %d came back different", i, worker, side)
								return
							}
						}
					})
				}
			}
			wg.Wait()
			if served.Load() < 1800 {
				t.Errorf("%d frames were served", served.Load())
			}
		})
	}
}

// sizeFor is a size around one of the borders of the writer and the reader.
func sizeFor(r *rand.Rand) int {
	border := []int{0, 10, 500, inline, readBuffer / 2, readBuffer}[r.IntN(6)]
	return max(0, border+r.IntN(200)-100)
}

// tightConns are the ends of a connection with small buffers.
func tightConns(t *testing.T) (a, b net.Conn) {
	t.Helper()
	a, b = conns(t)
	for _, c := range []net.Conn{a, b} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(4 << 10) // not the other one: a window below the size of a packet makes TCP wait
		}
	}
	return a, b
}

// proxy copies between two connections in pieces, now and then with a pause.
func proxy(t *testing.T, a, b net.Conn, seed uint64) {
	t.Helper()
	var wg sync.WaitGroup
	for i, way := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+i)))
			buf := make([]byte, 8<<10)
			for {
				n, err := way[0].Read(buf[:1+r.IntN(len(buf))])
				if _, failed := way[1].Write(buf[:n]); err != nil || failed != nil {
					_ = way[0].Close()
					_ = way[1].Close()
					return
				}
				if r.IntN(50) == 0 {
					time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
				}
			}
		})
	}
	t.Cleanup(func() { _ = a.Close(); _ = b.Close(); wg.Wait() })
}
