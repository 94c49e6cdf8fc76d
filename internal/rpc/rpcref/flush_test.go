// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"log/slog"
	"testing"

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
		t.Error("somebody waits for the end of a reference, or for an acknowledgement")
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
