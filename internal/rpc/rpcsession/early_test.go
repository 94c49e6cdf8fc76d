// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// user is who uses the sessions in tests.
type user struct {
	requests, controls, died chan string
}

func newUser() *user {
	return &user{make(chan string, 100), make(chan string, 100), make(chan string, 100)}
}

func (u *user) NewPeer() any                          { return nil }
func (u *user) Request(in Incoming)                   { u.requests <- in.Peer.Name }
func (u *user) Connected(*Conn)                       {}
func (u *user) Control(_ *Conn, payload []byte)       { u.controls <- string(payload) }
func (u *user) Discard(*Conn, *cohortwire.Frame)      {}
func (u *user) DiscardAnswer(*Peer, *rpcwire.Message) {}
func (u *user) Undelivered(*Peer, []rrefcore.Wire)    {}
func (u *user) HoldsReferences(*Peer) bool            { return false }
func (u *user) Died(p *Peer)                          { u.died <- p.Name }

// worker starts the sessions of a worker, whose secret is its name.
func worker(t *testing.T, u *user, name string, id int16) *Links {
	t.Helper()
	return workerAt(t, u, name, id, "127.0.0.1:0")
}

func workerAt(t *testing.T, u *user, name string, id int16, addr string) *Links {
	t.Helper()
	n := New(Config{
		Name: name, Logger: slog.New(slog.DiscardHandler), Handler: u,
		Published: func(context.Context, string) (string, rpcworld.Entry, error) {
			return "", rpcworld.Entry{}, cohort.New("test", cohort.NotFound, "no store")
		},
	})
	hello := &cohortwire.Config{
		Identity: cohortwire.Identity{Name: name, ID: id, Incarnation: 7}, Secret: []byte(name),
		Published: func(id cohortwire.Identity) ([]byte, error) { return []byte(id.Name), nil },
	}
	if err := n.Listen(t.Context(), addr, hello); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(n) })
	return n
}

func end(n *Links) {
	if n.BeginClose() {
		n.EndSessions(func() {}, func() {})
	}
	<-n.Done
}

// A worker joins. Others know it already, and what they send it makes it send to us before we know of it: what it sends about
// references is kept until we are.
func TestControlFrameOfWorkerThatJoins(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	told := newUser()
	a, b := worker(t, told, "a", 0), worker(t, newUser(), "b", 1)
	c, err := b.AddPeer("a", 0, a.Addr().String(), rpcworld.Entry{Epoch: 7}).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*cohortwire.Frame{
		{Type: FrameControl, Payload: []byte("early")},
		{Type: 0x100, ID: 1, Payload: []byte("a request")},
	} {
		if err = c.Link.Send(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-told.requests: // which came after the control frame
	case <-ctx.Done():
		t.Fatal("the request did not come")
	}
	if n := len(told.controls); n != 0 {
		t.Fatalf("%d control frames of an unknown worker were accepted", n)
	}
	a.AddPeer("b", 1, b.Addr().String(), rpcworld.Entry{Epoch: 7})
	a.Admit("b")
	select {
	case got := <-told.controls:
		if got != "early" {
			t.Errorf("the control frame is %q", got)
		}
	default:
		t.Error("the control frame of then was lost")
	}
	if p, err := a.Peer("b"); err != nil || p.Current() == nil {
		t.Errorf("its link is not the session with it: %v", err)
	}
}
