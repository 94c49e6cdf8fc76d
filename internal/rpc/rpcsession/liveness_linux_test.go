// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
)

// A worker ends, and another process gets its port: nothing is sent there.
func TestReusedAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, b := worker(t, newUser(), "a", 0), worker(t, newUser(), "b", 1)
	addr := b.Addr().String()
	p := a.AddPeer("b", 1, addr, rpcworld.Entry{Epoch: 7})
	c, err := p.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for noted := false; !noted; { // in the background
		p.mu.Lock()
		noted = p.mu.listener != ""
		p.mu.Unlock()
		if ctx.Err() != nil {
			t.Fatal("the listener was not noted")
		}
		time.Sleep(time.Millisecond)
	}
	if p.listenerClosed(addr) {
		t.Error("the worker listens, and is taken for gone")
	}
	end(b)
	<-c.Link.Done()
	other, err := net.Listen("tcp", addr)
	for err != nil && ctx.Err() == nil { // another process may have the port for a moment
		time.Sleep(10 * time.Millisecond)
		other, err = net.Listen("tcp", addr)
	}
	if err != nil {
		t.Fatal("the port is not free again: ", err)
	}
	defer other.Close()
	visited := make(chan struct{})
	go func() {
		defer close(visited)
		if nc, failed := other.Accept(); failed == nil {
			t.Error("the other process was called")
			_ = nc.Close()
		}
	}()
	if _, err = p.Connect(ctx); !errors.Is(err, rpcworld.ErrRefused) || cohort.CodeOf(err) != cohort.PeerLost {
		t.Errorf("connected to the address of another process: %v", err)
	}
	_ = other.Close()
	<-visited
	// It starts again, under the same name and at the same address, and says so.
	b = workerAt(t, newUser(), "b", 1, addr)
	p = a.AddPeer("b", 1, b.Addr().String(), rpcworld.Entry{Epoch: 7})
	if _, err = p.Connect(ctx); err != nil {
		t.Errorf("the next start of the worker: %v", err)
	}
}
