// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted is one end of a connection that counts what is written to it.
type counted struct {
	net.Conn
	writes, bytes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	c.bytes.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// bubble runs a test in virtual time with a link whose other end is the test's.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, l *Link, out *counted, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		out := &counted{Conn: near}
		cfg.Identity, cfg.Limit = Identity{"near", 1, 11}, -1
		go func() { _, _ = far.Write(Identity{"far", 2, 22}.opening()) }()
		go func() {
			_, _ = far.Read(make([]byte, 1<<10))
			_, _ = far.Read(make([]byte, 1<<10))
		}()
		l, err := Start(out, nil, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = far.Close(); _ = l.Close() }()
		synctest.Wait()
		out.writes.Store(0)
		out.bytes.Store(0)
		test(t, l, out, far)
	})
}

// drain reads all that comes, for as long as the connection lives.
func drain(c net.Conn) {
	b := make([]byte, 1<<16)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

func requests(n int) (b []byte) {
	for i := range n {
		f := &Frame{Type: 0x102, ID: uint64(i)}
		b = f.AppendHead(b)
	}
	return b
}

// Requests that arrive together are answered together: the answers leave in one write. The last one finds an empty queue behind it.
func TestAnswersAreCollected(t *testing.T) {
	const n = 10
	var quiet, seen int
	bubble(t, Config{OnFrame: func(l *Link, f *Frame) {
		seen++
		if f.BufferEmpty {
			quiet++
			if f.ID != n-1 {
				t.Errorf("frame %d is called the last one", f.ID)
			}
		}
		if err := l.Post(context.Background(), &Frame{Type: 0x203, ID: f.ID}); err != nil {
			t.Error(err)
		}
	}}, func(t *testing.T, l *Link, out *counted, far net.Conn) {
		t.Helper()
		go drain(far)
		if _, err := far.Write(requests(n)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		one := int64(len((&Frame{Type: 0x203}).AppendHead(nil)))
		if got := out.writes.Load(); got > 2 { // the last answer finds no further request, and may go by itself
			t.Errorf("%d writes for %d answers", got, n)
		}
		if got := out.bytes.Load(); got != n*one {
			t.Errorf("%d bytes, want %d", got, n*one)
		}
		if seen != n || quiet != 1 {
			t.Errorf("%d frames, %d of them quiet", seen, quiet)
		}
		if l.inFlight.Load() != 0 {
			t.Errorf("a load of %d is left", l.inFlight.Load())
		}
	})
}

// Written is called when the memory is free: at once for a small frame, which is copied, after the write for a large one,
// and not at all for one that is not written to its end.
func TestWritten(t *testing.T) {
	bubble(t, Config{OnFrame: ignore}, func(t *testing.T, l *Link, _ *counted, far net.Conn) {
		t.Helper()
		var calls atomic.Int64
		post := func(size int) {
			t.Helper()
			if err := l.Post(context.Background(),
				&Frame{Type: FirstAgentType, Payload: make([]byte, size), Written: func() { calls.Add(1) }}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		expect := func(when string, n int64) {
			t.Helper()
			if got := calls.Load(); got != n {
				t.Errorf("%s: written %d times, want %d", when, got, n)
			}
		}
		post(10)
		expect("a small frame", 1)
		post(1 << 20) // the peer does not read yet
		expect("a large frame that waits", 1)
		reading := make(chan struct{})
		go func() {
			defer close(reading)
			b := make([]byte, 1<<16)
			for left := 1<<20 + 400; left > 1<<16; { // almost all of both
				n, err := far.Read(b)
				if err != nil {
					return
				}
				left -= n
			}
		}()
		<-reading
		go drain(far)
		synctest.Wait()
		expect("a large frame", 2)
		_ = far.SetReadDeadline(time.Now()) // the peer does not read any more
		synctest.Wait()
		post(1 << 20)
		_ = far.Close()
		synctest.Wait()
		expect("a frame that was cut off", 2)
	})
}

// Post does not wait while at most 64 MiB do; Send waits for each.
func TestPostIsBounded(t *testing.T) {
	const size = 8 << 20
	payload := make([]byte, size)
	bubble(t, Config{OnFrame: ignore}, func(t *testing.T, l *Link, _ *counted, far net.Conn) {
		t.Helper()
		try := func(send func(context.Context, *Frame) error) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return send(ctx, &Frame{Type: FirstAgentType, Payload: payload})
		}
		const room = postedBytes/size + 1 // one more may come while not more than postedBytes wait
		for i := range room {
			if err := try(l.Post); err != nil {
				t.Fatalf("post %d: %v", i, err)
			}
		}
		if err := try(l.Post); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("post over the bound: %v", err)
		}
		if err := try(l.Send); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("send of a large frame that the peer does not read: %v", err)
		}
		if err := l.Post(context.Background(), &Frame{Type: FirstAgentType}); err != nil {
			t.Errorf("a small frame waits for large ones: %v", err)
		}
		go drain(far)
		synctest.Wait()
		if l.out.large != 0 {
			t.Errorf("%d bytes are counted after everything was written", l.out.large)
		}
		for range 2 * room { // there is room again
			if err := try(l.Post); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})
}

// A delayed frame is written with the next one, when it is flushed, and when too much is delayed.
func TestLinger(t *testing.T) {
	bubble(t, Config{OnFrame: ignore}, func(t *testing.T, l *Link, out *counted, far net.Conn) {
		t.Helper()
		go drain(far)
		one := int64(len((&Frame{Type: FirstAgentType}).AppendHead(nil)))
		send := func(how func(context.Context, *Frame) error, times int) {
			t.Helper()
			for range times {
				if err := how(context.Background(), &Frame{Type: FirstAgentType}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		expect := func(when string, writes, frames int64) {
			t.Helper()
			if w, b := out.writes.Swap(0), out.bytes.Swap(0); w != writes || b != frames*one {
				t.Errorf("%s: %d writes of %d bytes, want %d of %d", when, w, b, writes, frames*one)
			}
		}
		send(l.PostDelayed, 3)
		expect("three are delayed", 0, 0)
		send(l.Post, 1)
		expect("another one is sent", 1, 4)
		send(l.PostDelayed, 2)
		l.FlushNow()
		synctest.Wait()
		expect("two are flushed", 1, 2)
		l.FlushNow()
		synctest.Wait()
		expect("nothing is delayed", 0, 0)
		send(l.PostDelayed, maxDelayedBytes/int(one)+1)
		expect("too many are delayed", 1, int64(maxDelayedBytes/int(one)+1))
	})
}
