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
// A worker of which the store does not tell is not taken for deaf.
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
