// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// TestHasten: the owner gets a control frame also when there is nothing to say, because the announcement has left already.
func TestHasten(t *testing.T) {
	n := links(t, "a")
	p := n.AddPeer("b", 1, "uv://127.0.0.1:1", rpcworld.Entry{Epoch: 8})
	r := New(Config{Name: "a", Epoch: 7, Logger: slog.New(slog.DiscardHandler), Net: n, Self: n.NewPeer("a", 0)})
	h, _, err := r.Create(p, "")
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := r.mu.m.FrameIn(p.ID, nil); !ok || len(f.Msgs) != 1 {
		t.Fatalf("the announcement: %v, %v", f, ok)
	}
	r.RequestAnswerNow(h)
	if f, ok := r.mu.m.FrameIn(p.ID, nil); !ok || len(f.Msgs) != 0 {
		t.Errorf("nothing makes the owner hurry: %v, %v", f, ok)
	}
}

// TestLingers: what lingers leaves with the next flush, also when the control stream has nothing to say. An acknowledgement waits longer.
func TestLingers(t *testing.T) {
	n := links(t, "a")
	p := n.AddPeer("b", 1, "uv://127.0.0.1:1", rpcworld.Entry{})
	r := New(Config{Name: "a", Epoch: 7, Logger: slog.New(slog.DiscardHandler), Net: n, Self: n.NewPeer("a", 0)})
	flushed := func(when string, left bool) {
		t.Helper()
		if got := r.flushDirty(); got != left || (len(r.mu.dirty) > 0) != left || (len(r.mu.lazy) > 0) != left {
			t.Errorf("%s: left for the next time: %v, want %v; dirty %v, lazy %v", when, got, left, r.mu.dirty, r.mu.lazy)
		}
	}
	r.SendWithNextFlush(p)
	flushed("an answer lingers", false)
	r.mu.dirty[p.ID] = true
	flushed("an acknowledgement waits", true)
	r.SendWithNextFlush(p)
	flushed("both", false)
}

// TestAwaited: what a program waits for is answered at once, what merely goes along does not end the lending of a link.
func TestAwaited(t *testing.T) {
	idle := rrefcore.Frame{Msgs: []rrefcore.Message{{Kind: rrefcore.Announce}, {Kind: rrefcore.Delete}, {Kind: rrefcore.Created}}}
	if awaited(idle) || awaited(rrefcore.Frame{}) {
		t.Error("a goroutine waits for the end of a reference, or for an acknowledgement")
	}
	for _, kind := range []rrefcore.Kind{
		rrefcore.ForkRequest, rrefcore.ChildAccept, rrefcore.ForkReply, rrefcore.Cancel,
		rrefcore.Handoff, rrefcore.Withdraw,
	} {
		if !awaited(rrefcore.Frame{Msgs: append(idle.Msgs, rrefcore.Message{Kind: kind})}) {
			t.Errorf("the answer to %v counts as not awaited", kind)
		}
	}
}

// unasked is who uses sessions without requests.
type unasked struct{ rpcsession.Handler }

func (unasked) NewPeer() any                          { return NewPeer() }
func (unasked) Connected(*rpcsession.Conn)            {}
func (unasked) HoldsReferences(*rpcsession.Peer) bool { return false }
func (unasked) Died(*rpcsession.Peer)                 {}

func endLinks(n *rpcsession.Links) {
	if n.BeginClose() {
		n.EndSessions(func() {}, func() {})
	}
	<-n.Done
}

func links(t *testing.T, name string) *rpcsession.Links {
	t.Helper()
	n := rpcsession.New(rpcsession.Config{Name: name, Logger: slog.New(slog.DiscardHandler), Handler: unasked{}})
	if err := n.Listen(t.Context(), "127.0.0.1:0", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endLinks(n) })
	return n
}

func await(ctx context.Context, t *testing.T, holds func() bool) {
	t.Helper()
	for !holds() {
		if ctx.Err() != nil {
			t.Fatal("the pipe, or its end, was not noticed")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSilentStore: a worker that leaves asks the store only for a moment which workers are Go workers, since it has released nothing yet.
// A worker about which the store does not report is not taken for deaf.
func TestSilentStore(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := links(t, "a"), links(t, "b")
	p := a.AddPeer("b", 1, "uv://"+b.Addr().String(), rpcworld.Entry{})
	if _, err := b.AddPeer("a", 0, "uv://"+a.Addr().String(), rpcworld.Entry{}).Connect(ctx); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, p.Met.Load)
	endLinks(b)
	await(ctx, t, func() bool { return a.RequestPipesClosed(1) })
	for name, x := range map[string]struct {
		isGo bool
		err  error
		deaf bool
	}{
		"PyTorch": {false, nil, true}, "Go": {true, nil, false},
		"unknown": {false, cohort.New("test", cohort.DeadlineExceeded, "silence"), false},
	} {
		t.Run(name, func(t *testing.T) {
			var left time.Duration
			r := New(Config{
				Name: "a", Epoch: 7, Logger: slog.New(slog.DiscardHandler), Net: a, Self: a.NewPeer("a", 0),
				Limit: func() time.Duration { return time.Minute },
				IsGo: func(ctx context.Context, _ string) (bool, error) {
					end, _ := ctx.Deadline()
					left = time.Until(end)
					return x.isGo, x.err
				},
			})
			if got := r.deaf(ctx)(rrefcore.Worker(1)); got != x.deaf {
				t.Errorf("deaf: %v", got)
			}
			if left > 5*time.Second {
				t.Errorf("the store may be silent for %v", left)
			}
		})
	}
}
