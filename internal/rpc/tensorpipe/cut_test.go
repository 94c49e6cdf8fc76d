// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
)

func startProxy(t *testing.T, target string) *faultnet.Proxy {
	t.Helper()
	proxy, err := faultnet.ListenTCP(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	return proxy
}

// TestCutAgainAndAgain cuts the connection of two workers at random moments, among them those of the handshake, while both
// sides want it back. Both must always come to the same working link.
func TestCutAgainAndAgain(t *testing.T) {
	a, b := goWorker(t, "a"), goWorker(t, "b")
	toA, toB := startProxy(t, a.Addr().String()), startProxy(t, b.Addr().String())
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
			wg.Go(func() { _, _ = a.Connect(ctx, "b", toB.Addr()) })
			wg.Go(func() { _, _ = b.Connect(ctx, "a", toA.Addr()) })
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
			toA.Cut()
			toB.Cut()
			wg.Wait()
		}
		works := func(from *Endpoint, to, addr string) bool {
			s, err := from.Connect(ctx, to, addr)
			if err != nil {
				return false
			}
			f, err := call(ctx, s.Link, &cohortwire.Frame{Type: 0x102, Payload: []byte("hi")})
			return err == nil && string(f.Payload) == to+":hi"
		}
		for begin := time.Now(); ; time.Sleep(time.Millisecond) {
			if works(a, "b", toB.Addr()) && works(b, "a", toA.Addr()) {
				break
			}
			if time.Since(begin) > 10*time.Second {
				t.Fatal("no new link was opened")
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
			relay := startProxy(t, far.Addr().String())
			first, err := near.Connect(within(t), names[1], relay.Addr())
			if err != nil {
				t.Fatal(err)
			}
			callLink(t, first, names[1])
			relay.CutClients()
			<-first.Done()
			second, err := near.Connect(within(t), names[1], relay.Addr())
			if err != nil {
				t.Fatal(err)
			}
			callLink(t, second, names[1])
			back, err := far.Connect(within(t), names[0], near.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if !carries(t, back, names[0]) { // the new link answers a moment before it replaces the old one, which has now ended
				if back, err = far.Connect(within(t), names[0], near.Addr().String()); err != nil {
					t.Fatal(err)
				}
				callLink(t, back, names[0])
			}
			if back.Dialled {
				t.Error("the other side did not keep the new link")
			}
		})
	}
}

// TestCloseAmidDials closes an endpoint at every moment of its dials. A dial whose connection comes while the endpoint
// closes must end in an error, whichever of the two is first.
func TestCloseAmidDials(t *testing.T) {
	peer := goWorker(t, "peer")
	var drain sync.WaitGroup
	drain.Go(func() {
		for {
			s, err := peer.Accept(context.Background())
			if err != nil {
				return
			}
			_ = s.Close()
		}
	})
	defer func() { _ = peer.Close(); drain.Wait() }()
	for range 300 {
		ep := goWorker(t, "dialler")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		var dials sync.WaitGroup
		for range 4 {
			dials.Go(func() {
				if s, dialErr := ep.Dial(ctx, peer.Addr().String()); dialErr == nil {
					_ = s.Close()
				}
			})
		}
		dials.Go(func() { _, _ = ep.Connect(ctx, "peer", peer.Addr().String()) })
		time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond)
		_ = ep.Close()
		dials.Wait()
		if ctx.Err() != nil {
			t.Fatal("a dial outlived its endpoint")
		}
		cancel()
	}
}
