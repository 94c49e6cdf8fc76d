// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
)

// pipeWorker starts the sessions of a worker that speaks as PyTorch's do.
func pipeWorker(t *testing.T, u *user, name string, patience time.Duration) *Links {
	t.Helper()
	n := New(Config{Name: name, Logger: slog.New(slog.DiscardHandler), Handler: u})
	n.unreachableLimit = patience
	if err := n.Listen(t.Context(), "127.0.0.1:0", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(n) })
	return n
}

// pipeThrough connects a worker to another one whose connections can be cut.
func pipeThrough(ctx context.Context, t *testing.T, patience time.Duration) (told *user, a *Links, p *Peer, proxy *faultnet.Proxy) {
	t.Helper()
	told = newUser()
	a = pipeWorker(t, told, "a", patience)
	proxy, err := faultnet.ListenTCP(pipeWorker(t, newUser(), "b", unreachableLimit).Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	p = a.AddPeer("b", 1, "uv://"+proxy.Addr(), rpcworld.Entry{})
	if _, err = p.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	return told, a, p, proxy
}

// lost waits until the pipe of a worker has ended.
func lost(ctx context.Context, t *testing.T, c *Conn) {
	t.Helper()
	for c.Alive() {
		if ctx.Err() != nil {
			t.Fatal("the pipe lives")
		}
		time.Sleep(time.Millisecond)
	}
}

func awaitDeath(ctx context.Context, t *testing.T, told *user) {
	t.Helper()
	select {
	case <-told.died:
	case <-ctx.Done():
		t.Fatal("its death is not noticed")
	}
}

// The end of a pipe does not prove that the process at its other end has ended: a refused connection does.
func TestPipeIsCut(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told, _, p, proxy := pipeThrough(ctx, t, unreachableLimit)
	for range 3 {
		c := p.Current()
		proxy.Cut()
		lost(ctx, t, c)
		for p.Current() == nil || p.reconnecting.Load() {
			if ctx.Err() != nil {
				t.Fatal("no new pipe was opened")
			}
			time.Sleep(time.Millisecond)
		}
	}
	if len(told.died) > 0 {
		t.Fatal("a live worker was declared dead")
	}
	_ = proxy.Close()
	awaitDeath(ctx, t, told)
}

// A process that is ending may take connections for a moment.
func TestPipeOfProcessThatEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told, _, p, proxy := pipeThrough(ctx, t, unreachableLimit)
	c := p.Current()
	proxy.Refuse(true)
	proxy.Cut()
	lost(ctx, t, c)
	if len(told.died) > 0 {
		t.Error("it was declared dead although it accepts connections")
	}
	_ = proxy.Close()
	awaitDeath(ctx, t, told)
}

// A worker that stays unreachable is declared dead in the end, though no connection is refused.
func TestPipeOutOfReach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told, _, _, proxy := pipeThrough(ctx, t, time.Millisecond)
	proxy.Refuse(true)
	proxy.Cut()
	awaitDeath(ctx, t, told)
}

// Who has said that it leaves, and the process in whose place another one has come, are not asked.
func TestPipeOfWorkerThatLeft(t *testing.T) {
	next := pipeWorker(t, newUser(), "b", unreachableLimit).Addr().String()
	for name, goes := range map[string]func(a *Links, p *Peer){
		"left":     func(_ *Links, p *Peer) { p.markLeft() },
		"replaced": func(a *Links, p *Peer) { a.AddPeer(p.Name, p.ID, "uv://"+next, rpcworld.Entry{}) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			told, a, p, proxy := pipeThrough(ctx, t, unreachableLimit)
			goes(a, p)
			proxy.Cut()
			awaitDeath(ctx, t, told)
		})
	}
}

// TestNewPipeIsHeard: the pipes of a worker do not count as closed while its first one is opened: a worker that leaves
// at that moment would not wait for what it has to say about references.
func TestNewPipeIsHeard(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told := newUser()
	a := pipeWorker(t, told, "a", unreachableLimit)
	for id := range rrefcore.Worker(20) {
		name := fmt.Sprintf("b%d", id)
		p := a.AddPeer(name, id, "uv://127.0.0.1:1", rpcworld.Entry{})
		b := pipeWorker(t, newUser(), name, unreachableLimit)
		connected := make(chan error, 1)
		go func() {
			_, err := b.AddPeer("a", 100, "uv://"+a.Addr().String(), rpcworld.Entry{}).Connect(ctx)
			connected <- err
		}()
		for !p.openedPipe.Load() && ctx.Err() == nil {
			runtime.Gosched()
		}
		for range 1000 {
			if a.RequestPipesClosed(id) {
				t.Fatalf("the pipes of %s count as closed while it joins", name)
			}
		}
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
	}
}
