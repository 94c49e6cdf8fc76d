// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// The types of a request without a waiting caller, and of its answer.
const makes, made Type = 0x105, 0x206

func passedOn(t Type) bool { return t == made || t == FirstAgentType+1 }

// order sends a request and does not wait for its answer.
func (a *asker) order(t *testing.T) {
	t.Helper()
	if err := a.link.Send(within(t), &Frame{Type: makes, ID: ids.Add(1)}); err != nil {
		t.Error(err)
	}
}

// asker matches answers with calls itself, as an agent does.
type asker struct {
	link    *Link
	mu      sync.Mutex
	calls   map[uint64]chan *Frame
	other   chan *Frame  // what was not an answer
	made    chan *Frame  // answers that are not awaited
	awaited atomic.Int64 // answers that callers read
}

func (a *asker) onFrame(l *Link, f *Frame) {
	if !f.Type.IsResponse() {
		a.other <- f
		if f.isRequest() {
			answer := &Frame{Type: 0x203, ID: f.ID, Payload: f.Payload}
			if f.Type == makes {
				answer.Type = made
			}
			go func() { _ = l.Post(context.Background(), answer) }()
		}
		return
	}
	if f.Type == made {
		select {
		case a.made <- f:
		default: // no goroutine reads
		}
		return
	}
	a.mu.Lock()
	ch := a.calls[f.ID]
	delete(a.calls, f.ID)
	a.mu.Unlock()
	l.Answered(f)
	ch <- f
}

// ask calls and waits. sync reports whether it reads its answer itself when it may.
func (a *asker) ask(ctx context.Context, f *Frame, sync bool) (*Frame, error) {
	f.Type, f.ID = 0x102, ids.Add(1)
	ch := make(chan *Frame, 1)
	a.mu.Lock()
	a.calls[f.ID] = ch
	a.mu.Unlock()
	send := a.link.Send
	if sync {
		send = a.link.Request
	}
	if err := send(ctx, f); err != nil {
		return nil, err
	}
	if sync {
		if answer := a.link.Await(f.ID); answer != nil {
			a.mu.Lock()
			delete(a.calls, f.ID)
			a.mu.Unlock()
			a.awaited.Add(1)
			return answer, nil
		}
	}
	select {
	case answer := <-ch:
		return answer, nil
	case <-a.link.Done():
		return nil, a.link.Err()
	case <-ctx.Done():
		return nil, cohort.FromContext(ctx, "ask")
	}
}

func newAsker() *asker {
	return &asker{calls: map[uint64]chan *Frame{}, other: make(chan *Frame, 1000), made: make(chan *Frame, 1<<16)}
}

// peered is an asker whose peer does with every frame what act does, in one goroutine.
func peered(t *testing.T, act func(conn net.Conn, r *frameReader, f *Frame)) *asker {
	t.Helper()
	ca, cb := conns(t)
	if _, err := cb.Write(Identity{"b", 2, 22}.opening()); err != nil {
		t.Fatal(err)
	}
	a := newAsker()
	l, err := Start(ca, nil, Config{Identity: Identity{"a", 1, 11}, OnFrame: a.onFrame, MayPassOn: passedOn})
	if err != nil {
		t.Fatal(err)
	}
	a.link = l
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := newFrameReader(&Link{cfg: Config{}.withDefaults()}, cb, nil)
		for {
			f, err := r.next()
			if err != nil {
				return
			}
			act(cb, r, f)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); _ = cb.Close(); <-done })
	return a
}

// scripted is an asker whose peer answers requests at once, except those with flags: they are act's.
func scripted(t *testing.T, act func(a *asker, conn net.Conn, f *Frame)) *asker {
	t.Helper()
	known := make(chan *asker, 1)
	var a *asker
	known <- peered(t, func(conn net.Conn, _ *frameReader, f *Frame) {
		switch {
		case f.Type != 0x102:
		case f.Flags != 0:
			if a == nil {
				a = <-known
				known <- a
			}
			act(a, conn, f)
		default:
			_, _ = conn.Write(answerTo(f, f.Payload))
		}
	})
	result := <-known
	known <- result
	return result
}

func answerTo(f *Frame, payload []byte) []byte {
	return append((&Frame{Type: 0x203, ID: f.ID, Payload: payload}).AppendHead(nil), payload...)
}

// special makes calls until the reader is offered, then the one that the peer treats in its own way. own reports whether the
// caller has read the answer itself.
func (a *asker) special(t *testing.T) (answer *Frame, own bool, err error) {
	t.Helper()
	ctx := within(t)
	for a.link.borrow.state.Load() != readerOffered {
		if _, err = a.ask(ctx, &Frame{Payload: []byte("x")}, true); err != nil {
			t.Fatal(err)
		}
	}
	before := a.awaited.Load()
	answer, err = a.ask(ctx, &Frame{Flags: 1}, true)
	return answer, a.awaited.Load() > before, err
}

// whileTaken waits, for a moment, until a caller reads, and reports whether one does.
func (a *asker) whileTaken() bool {
	for range 100 {
		if a.link.borrow.state.Load() == readerBorrowed {
			return true
		}
		time.Sleep(10 * time.Microsecond)
	}
	return false
}

// TestCallerReads has something happen while a caller reads. On a busy machine the guard may be faster than that, so each
// is tried until it did happen there, and has to end well either way.
func TestCallerReads(t *testing.T) {
	big := bytesOf(300_000)
	aside := append((&Frame{Type: FirstAgentType + 1, ID: 9, Payload: []byte("hi")}).AppendHead(nil), "hi"...)
	foreign := append((&Frame{Type: 0x104, ID: 9, Payload: []byte("hi")}).AppendHead(nil), "hi"...)
	for name, c := range map[string]struct {
		act    func(a *asker, conn net.Conn, f *Frame)
		want   []byte // the answer; nil when the link ends
		others int
		own    bool // the caller reads its answer in spite of the others
		code   error
	}{
		"an answer": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(answerTo(f, []byte("yes")))
		}, want: []byte("yes")},
		"an answer in pieces": {act: func(_ *asker, conn net.Conn, f *Frame) {
			out := answerTo(f, []byte("yes"))
			for _, piece := range [][]byte{out[:1], out[1:HeaderSize], out[HeaderSize : len(out)-1], out[len(out)-1:]} {
				_, _ = conn.Write(piece)
				time.Sleep(50 * time.Microsecond)
			}
		}, want: []byte("yes")},
		"a long answer": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(answerTo(f, big))
		}, want: big},
		"a request before it": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(append(bytes.Clone(foreign), answerTo(f, []byte("yes"))...))
		}, want: []byte("yes"), others: 1},
		"a request behind it": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(append(answerTo(f, []byte("yes")), foreign...))
		}, want: []byte("yes"), others: 1},
		"a frame to pass on before it": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(append(bytes.Clone(aside), answerTo(f, []byte("yes"))...))
		}, want: []byte("yes"), others: 1, own: true},
		"frames to pass on behind it": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(append(answerTo(f, []byte("yes")), append(bytes.Clone(aside), aside...)...))
		}, want: []byte("yes"), others: 2, own: true},
		"a frame to pass on and a request before it": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(append(append(bytes.Clone(aside), foreign...), answerTo(f, []byte("yes"))...))
		}, want: []byte("yes"), others: 2},
		"a frame to pass on that is wrong inside": {act: func(_ *asker, conn net.Conn, f *Frame) {
			out := bytes.Clone(aside)
			out[32] = 0xff // a longer extension than the body
			_, _ = conn.Write(append(out, answerTo(f, []byte("yes"))...))
		}, code: cohort.Protocol},
		"half a request behind it": {act: func(_ *asker, conn net.Conn, f *Frame) {
			_, _ = conn.Write(append(answerTo(f, []byte("yes")), foreign[:20]...))
			time.Sleep(time.Millisecond)
			_, _ = conn.Write(foreign[20:])
		}, want: []byte("yes"), others: 1},
		"a late answer": {act: func(a *asker, conn net.Conn, f *Frame) {
			for end := time.Now().Add(10 * time.Second); a.link.borrow.state.Load() != readerOwned && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			_, _ = conn.Write(answerTo(f, []byte("yes")))
		}, want: []byte("yes")},
		"garbage": {act: func(_ *asker, conn net.Conn, _ *Frame) {
			_, _ = conn.Write(bytes.Repeat([]byte("garbage "), 20))
		}, code: cohort.Protocol},
		"an answer that is wrong inside": {act: func(_ *asker, conn net.Conn, f *Frame) {
			out := answerTo(f, []byte("yes"))
			out[32] = 0xff // a longer extension than the body
			_, _ = conn.Write(append(out, foreign...))
		}, code: cohort.Protocol},
		"the end": {act: func(_ *asker, conn net.Conn, _ *Frame) {
			_ = conn.Close()
		}, code: cohort.PeerLost},
		"the end of our side": {act: func(a *asker, _ net.Conn, _ *Frame) {
			_ = a.link.Close()
		}, code: cohort.Closed},
	} {
		t.Run(name, func(t *testing.T) {
			var happened atomic.Bool
			act := func(a *asker, conn net.Conn, f *Frame) {
				if a.whileTaken() {
					happened.Store(true)
				}
				c.act(a, conn, f)
			}
			a := scripted(t, act)
			for end := time.Now().Add(15 * time.Second); !happened.Load() && time.Now().Before(end); {
				answer, own, err := a.special(t)
				if c.want == nil {
					if !errors.Is(err, c.code) {
						t.Fatalf("error %v, want %v", err, c.code)
					}
					if _, err = a.ask(within(t), &Frame{}, true); err == nil {
						t.Fatal("the link lives on")
					}
					if !happened.Load() {
						a = scripted(t, act)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if c.own && !own {
					happened.Store(false) // the guard came between
				}
				if !bytes.Equal(answer.Payload, c.want) {
					t.Fatalf("answer of %d bytes, want %d", len(answer.Payload), len(c.want))
				}
				for range c.others {
					select {
					case f := <-a.other:
						if f.ID != 9 || string(f.Payload) != "hi" {
							t.Fatalf("request %d %q", f.ID, f.Payload)
						}
					case <-within(t).Done():
						t.Fatal("the request behind the answer did not arrive")
					}
				}
			}
			if !happened.Load() {
				t.Fatal("no caller has read its own answer in 15 s")
			}
		})
	}
}

// TestOfferedReaderIsReclaimed: what arrives while the reader is offered is read, and so is the answer to a call that does not read.
func TestOfferedReaderIsReclaimed(t *testing.T) {
	a := scripted(t, func(_ *asker, conn net.Conn, f *Frame) {
		_, _ = conn.Write(answerTo(f, nil))
		go func() {
			time.Sleep(3 * time.Millisecond)
			_, _ = conn.Write((&Frame{Type: FirstAgentType, ID: 5}).AppendHead(nil))
		}()
	})
	for range 20 {
		if _, _, err := a.special(t); err != nil {
			t.Fatal(err)
		}
		select {
		case <-a.other:
		case <-within(t).Done():
			t.Fatal("a frame that came while the reader was offered was not read")
		}
		for a.link.borrow.state.Load() != readerOffered {
			if _, err := a.ask(within(t), &Frame{}, true); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.ask(within(t), &Frame{}, false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCallersOfAllKinds lets calls that read, calls that do not and requests of the peer meet, in bursts with pauses so
// that the reader is offered again and again.
func TestCallersOfAllKinds(t *testing.T) {
	a, b := newAsker(), newAsker()
	go func() { // no goroutine reads the requests
		for range a.other {
		}
	}()
	go func() {
		for range b.other {
		}
	}()
	x, y := pair(t, Config{OnFrame: a.onFrame, MayPassOn: passedOn}, Config{OnFrame: b.onFrame, MayPassOn: passedOn})
	t.Cleanup(func() { _ = x.Close(); _ = y.Close(); close(a.other); close(b.other) })
	a.link, b.link = x, y
	end := time.Now().Add(1500 * time.Millisecond)
	var wg sync.WaitGroup
	for i, who := range []*asker{a, a, a, b, b} {
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				size := 8
				if n%50 == 49 {
					size = 70_000
				}
				want := bytesOf(size + i)
				if i == 0 && n%200 < 150 {
					who.order(t)
				}
				f, err := who.ask(ctx, &Frame{Payload: want}, i != 1)
				cancel()
				if err != nil || !bytes.Equal(f.Payload, want) {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				if i > 0 && n%4 == 3 {
					time.Sleep(time.Duration(i) * 7 * time.Millisecond) // the first caller is alone for a while
				}
			}
		})
	}
	wg.Wait()
	for ctx := within(t); x.inFlight.Load() != 0 && ctx.Err() == nil; { // for the last answers, which are not awaited
		time.Sleep(time.Millisecond)
	}
	if got := x.inFlight.Load(); got != 0 {
		t.Errorf("the load is %d in the end", got)
	}
	t.Logf("%d and %d answers were read by their callers", a.awaited.Load(), b.awaited.Load())
}
