// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/cohortwire"
)

// severable is a relay before a listener whose connections a test can cut, at both ends or at one.
type severable struct {
	ln     net.Listener
	target string
	work   sync.WaitGroup
	mu     sync.Mutex
	pairs  map[*[2]net.Conn]struct{} // who dialled, and the listener
	held   []net.Conn
}

func startSeverable(t *testing.T, target string) *severable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &severable{ln: ln, target: target, pairs: map[*[2]net.Conn]struct{}{}}
	s.work.Go(s.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		s.cut()
		s.mu.Lock()
		for _, c := range s.held {
			_ = c.Close()
		}
		s.mu.Unlock()
		s.work.Wait()
	})
	return s
}

func (s *severable) accept() {
	for {
		near, err := s.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", s.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		pair := &[2]net.Conn{near, far}
		s.mu.Lock()
		s.pairs[pair] = struct{}{}
		s.mu.Unlock()
		pass := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			s.mu.Lock()
			_, whole := s.pairs[pair]
			delete(s.pairs, pair)
			s.mu.Unlock()
			if whole {
				_, _ = near.Close(), far.Close()
			}
		}
		s.work.Go(func() { pass(far, near) })
		s.work.Go(func() { pass(near, far) })
	}
}

func (s *severable) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.pairs {
		_, _ = p[0].Close(), p[1].Close()
	}
	clear(s.pairs)
}

// cutNear ends the connections for who dialled; the listener hears nothing of it.
func (s *severable) cutNear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.pairs {
		_ = p[0].Close()
		s.held = append(s.held, p[1])
	}
	clear(s.pairs)
}

// TestCutAgainAndAgain cuts the connection of two workers at random moments, among them those of the handshake, while both
// sides want it back. Both must always come to the same working link.
func TestCutAgainAndAgain(t *testing.T) {
	a, b := goWorker(t, "a"), goWorker(t, "b")
	toA, toB := startSeverable(t, a.Addr().String()), startSeverable(t, b.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var drain sync.WaitGroup
	defer func() { cancel(); drain.Wait() }()
	for _, ep := range []*Endpoint{a, b} {
		drain.Go(func() {
			for {
				if _, err := ep.Accept(ctx); err != nil {
					return
				}
			}
		})
	}
	for range 40 {
		for range rand.IntN(4) {
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = a.Connect(ctx, "b", toB.ln.Addr().String()) })
			wg.Go(func() { _, _ = b.Connect(ctx, "a", toA.ln.Addr().String()) })
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
			toA.cut()
			toB.cut()
			wg.Wait()
		}
		works := func(from *Endpoint, to, addr string) bool {
			s, err := from.Connect(ctx, to, addr)
			if err != nil {
				return false
			}
			f, err := s.Link.Call(ctx, &cohortwire.Frame{Type: 0x102, Payload: []byte("hi")})
			return err == nil && string(f.Payload) == to+":hi"
		}
		for begin := time.Now(); ; time.Sleep(time.Millisecond) {
			if works(a, "b", toB.ln.Addr().String()) && works(b, "a", toA.ln.Addr().String()) {
				break
			}
			if time.Since(begin) > 10*time.Second {
				t.Fatal("there is no link again")
			}
		}
	}
}

// TestHalfOpenLink lets a connection end for one side only. The other one, which still has its link and gets no word, must
// take a new one long before it would find the old one silent.
func TestHalfOpenLink(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		t.Run(names[0], func(t *testing.T) {
			near, far := goWorkerSilent(t, names[0]), goWorkerSilent(t, names[1])
			relay := startSeverable(t, far.Addr().String())
			first, err := near.Connect(within(t), names[1], relay.ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			callLink(t, first, names[1])
			relay.cutNear()
			<-first.Done()
			second, err := near.Connect(within(t), names[1], relay.ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			callLink(t, second, names[1])
			back, err := far.Connect(within(t), names[0], near.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			callLink(t, back, names[0])
			if back.Dialled {
				t.Error("the other side did not keep the new link")
			}
		})
	}
}
