// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpcworld"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/store"
)

// TestControlFrameOfWorkerThatJoins gets control messages of a worker before being told that it is a member. They count once
// it is.
func TestControlFrameOfWorkerThatJoins(t *testing.T) {
	ctx := testContext(t)
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	var said bytes.Buffer
	join := func(name string) *Agent {
		a, err := Join(ctx, st, name, WithAddr("127.0.0.1:0"), WithLogger(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a, b := join("a"), join("b")
	// As if b had come over this link but nobody had told us yet.
	var c *conn
	a.mu.Lock()
	for _, known := range a.links {
		c = known
	}
	a.mu.Unlock()
	if c == nil {
		t.Fatal("b has no link with a")
	}
	member := c.peer()
	a.removePeer("b")
	c.from.Store(&peer{agent: a, name: "b", worker: -1})
	c.entered.Store(false)
	b.refs.mu.Lock()
	_, code := b.refs.m.Create(a.id) // announces an object, with a control message
	f, some := b.refs.m.Frame(a.id)
	b.refs.mu.Unlock()
	if code != rrefcore.OK || !some {
		t.Fatalf("no control frame: %v, %v", code, some)
	}
	a.onFrame(c.link, &cohortwire.Frame{Type: frameControl, Payload: encodeControl(f)})
	if n := a.DebugInfo()["num_pending_owners"]; n != 0 || len(c.early) != 1 {
		t.Fatalf("%d objects for a stranger, %d frames are kept", n, len(c.early))
	}
	a.addPeer("b", b.id, "", rpcworld.Entry{Epoch: member.epoch})
	a.admit("b")
	if n := a.DebugInfo()["num_pending_owners"]; n != 1 || len(c.early) != 0 {
		t.Errorf("%d objects, %d frames are kept: the message of then was lost", n, len(c.early))
	}
	if said.Len() > 0 {
		t.Errorf("complaints: %s", &said)
	}
}
