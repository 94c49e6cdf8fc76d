// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
)

// blackhole is a connection that takes everything and brings nothing but the peer's hello.
type blackhole struct {
	net.Conn // its addresses
	mu       sync.Mutex
	hello    []byte
	closed   chan struct{}
	once     sync.Once
}

func newBlackhole() *blackhole {
	return &blackhole{hello: Identity{"gone", 2, 1}.opening(), closed: make(chan struct{})}
}

func (b *blackhole) Read(p []byte) (int, error) {
	b.mu.Lock()
	n := copy(p, b.hello)
	b.hello = b.hello[n:]
	b.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	<-b.closed
	return 0, io.EOF
}

func (b *blackhole) Write(p []byte) (int, error) {
	select {
	case <-b.closed:
		return 0, net.ErrClosed
	default:
		return len(p), nil
	}
}

func (b *blackhole) Close() error                     { b.once.Do(func() { close(b.closed) }); return nil }
func (b *blackhole) SetDeadline(time.Time) error      { return nil }
func (b *blackhole) SetReadDeadline(time.Time) error  { return nil }
func (b *blackhole) SetWriteDeadline(time.Time) error { return nil }

// What the kernel accepts does not count as received by the peer: pings, calls and long messages vanish without a trace.
func TestBlackholeIsFoundUnderLoad(t *testing.T) {
	for name, size := range map[string]int{"pings only": -1, "small frames": 10, "large frames": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := Start(newBlackhole(), nil, Config{OnFrame: ignore, Heartbeat: time.Second, Limit: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = l.Close() }()
				begun := time.Now()
				for size >= 0 && time.Since(begun) < time.Minute {
					if err = l.Send(context.Background(), &Frame{Type: FirstAgentType, Payload: make([]byte, size)}); err != nil {
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
				select {
				case <-l.Done():
				case <-time.After(time.Minute):
				}
				if took := time.Since(begun); took < 10*time.Second || took > 12*time.Second {
					t.Errorf("found after %v: %v", took, l.Err())
				}
				if err = l.Err(); !errors.Is(err, cohort.PeerLost) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestOwnStallIsNoSilence: a process that stood still for longer than the limit does not take its peer for dead when it goes on, although
// nothing has been read yet. If the peer stays silent it is given up in the end.
func TestOwnStallIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 5
		l := &Link{
			cfg: Config{Heartbeat: time.Second, Limit: limit * time.Second}.withDefaults(), conn: newBlackhole(),
			closed: make(chan struct{}),
		}
		ticks := make(chan time.Time)
		var watching sync.WaitGroup
		watching.Go(func() { l.watchWith(ticks) })
		defer watching.Wait()
		tick := func(after time.Duration) (alive bool) {
			time.Sleep(after)
			select {
			case ticks <- time.Now():
				synctest.Wait()
				return l.Err() == nil
			case <-l.Done():
				return false
			}
		}
		if !tick(time.Second) || !tick(time.Minute) {
			t.Errorf("a process that stood still: %v", l.Err())
		}
		l.reads.Add(1)
		for i := range limit {
			if !tick(time.Second) {
				t.Errorf("given up %d heartbeats after the last bytes: %v", i, l.Err())
			}
		}
		if tick(time.Second) {
			t.Error("a silent peer is not given up")
		}
		_ = l.conn.Close()
	})
}

// slow is a connection that takes a while for what is written to it.
type slow struct {
	net.Conn
	perKiB time.Duration
}

func (s slow) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k := min(len(p), 64<<10)
		time.Sleep(time.Duration(k) * s.perKiB >> 10)
		k, err = s.Conn.Write(p[:k])
		if n += k; err != nil {
			return n, err
		}
		p = p[k:]
	}
	return n, nil
}

// Behind a message that takes longer than the limit no ping gets through; its reader shows that it still lives.
func TestLongMessageOverASlowLink(t *testing.T) {
	for _, both := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const size = 12 << 20
			ca, cb := net.Pipe()
			got := make(chan int, 2)
			cfg := Config{
				OnFrame:   func(_ *Link, f *Frame) { got <- len(f.Payload) },
				Heartbeat: time.Second, Limit: 5 * time.Second,
			}
			x, y := start(t, slow{ca, 5 * time.Millisecond}, slow{cb, 5 * time.Millisecond}, cfg, cfg)
			defer func() { _ = x.Close(); _ = y.Close() }()
			begun := time.Now()
			links := []*Link{x, y}
			if !both {
				links = links[:1]
			}
			var sends sync.WaitGroup
			for _, l := range links {
				sends.Go(func() {
					if err := l.Send(context.Background(), &Frame{Type: FirstAgentType, Payload: make([]byte, size)}); err != nil {
						t.Errorf("send: %v", err)
					}
				})
			}
			sends.Wait()
			if t.Failed() {
				return
			}
			for range links {
				if n := <-got; n != size {
					t.Errorf("%d bytes came", n)
				}
			}
			if took := time.Since(begun); took < 30*time.Second {
				t.Errorf("it took %v only: the test shows nothing", took)
			}
		})
	}
}

// TestFailedLinkIsDone: two causes come at once, as when both sides close. A goroutine that gets one of them finds the link done:
// rpc repeats a request on the next link only then.
func TestFailedLinkIsDone(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		l := &Link{conn: newBlackhole(), closed: make(chan struct{})}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				l.fail(io.EOF)
				select {
				case <-l.Done():
				default:
					t.Error("the link has failed and is not done")
				}
			})
		}
		both.Wait()
		if t.Failed() {
			return
		}
	}
}
