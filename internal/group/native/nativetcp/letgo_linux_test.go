// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"weak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// watched returns a buffer, and what reports whether a goroutine has it.
func watched(n int) (buf []byte, kept func() bool) {
	buf = make([]byte, n)
	p := weak.Make(&buf[0])
	return buf, func() bool { return p.Value() != nil }
}

func isLetGo(t *testing.T, what string, kept func() bool) {
	t.Helper()
	testkit.Until(t, what+" is let go", func() bool {
		runtime.GC()
		return !kept()
	})
}

// exchange moves n bytes from rank 0 to rank 1. It has the buffers no more when it returns.
func exchange(t *testing.T, meshes []*Mesh, n int, early bool) (sent, received func() bool) {
	t.Helper()
	send, recv := &transport.Op{Peer: 1, Slot: 3}, &transport.Op{Peer: 0, Slot: 3}
	send.Buf, sent = watched(n)
	recv.Buf, received = watched(n)
	if early { // the message is there before its receive
		meshes[0].Send(send)
		meshes[1].Recv(recv)
	} else {
		meshes[1].Recv(recv)
		meshes[0].Send(send)
	}
	if err := errors.Join(wait(t, meshes[1], recv), wait(t, meshes[0], send)); err != nil {
		t.Fatal(err)
	}
	return sent, received
}

// TestBuffersAreLetGo: a mesh that goes on and has nothing to do keeps no buffer of an operation that has ended.
func TestBuffersAreLetGo(t *testing.T) {
	meshes := connectWith(t, 2, nil, func(c *Config) { c.Heartbeat = -1 })
	for _, n := range []int{100, eagerMax, 300_000, 3 << 20} {
		for _, early := range []bool{false, true} {
			sent, received := exchange(t, meshes, n, early)
			isLetGo(t, "what was sent", sent)
			isLetGo(t, "what was received", received)
		}
	}
}

// TestBuffersOfSleepersAreLetGo: nor the buffers of those that slept while another one drove.
func TestBuffersOfSleepersAreLetGo(t *testing.T) {
	meshes := connectWith(t, 2, nil, func(c *Config) { c.Heartbeat = -1 })
	var all []func() bool
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	const count = 3
	for i := range count {
		buf, kept := watched(100)
		all = append(all, kept)
		op := &transport.Op{Peer: 0, Slot: uint64(i), Buf: buf}
		meshes[1].Recv(op)
		go func() {
			err := meshes[1].Wait(ctx, op)
			if !meshes[1].Cancel(op) {
				err = nil
			}
			ended <- err
		}()
	}
	testkit.Until(t, "all wait", func() bool {
		meshes[1].mu.Lock()
		defer meshes[1].mu.Unlock()
		return len(meshes[1].mu.driver.sleepers) == count-1
	})
	cancel()
	for range count {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a wait ended with %v", err)
		}
	}
	for _, kept := range all {
		isLetGo(t, "what was to be received", kept)
	}
}

// TestBuffersOfALostRankAreLetGo: nor does a connection that has ended keep what it was about to write, its copy, or room to read.
func TestBuffersOfALostRankAreLetGo(t *testing.T) {
	m, s := withScripted(t)
	busy(t, m, s)
	_ = s.Close()
	op := &transport.Op{Peer: 1, Slot: 9, Buf: make([]byte, 1)}
	m.Recv(op)
	if err := wait(t, m, op); cohort.CodeOf(err) != cohort.PeerLost {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.mu.conns[1]
	if c.out.current != nil || c.out.piece != nil || c.out.control != nil || c.in.buf != nil || c.in.sink != nil {
		t.Errorf("kept: %v, %d bytes to write, %d of frames, %d to read", c.out.current, cap(c.out.piece), cap(c.out.control),
			cap(c.in.buf))
	}
}

// TestUnsentBuffersAreLetGo: nor what was put into a frame that is not sent.
func TestUnsentBuffersAreLetGo(t *testing.T) {
	m := connectWith(t, 2, nil, func(c *Config) { c.Heartbeat = -1 })[0]
	kept := func() func() bool {
		op := &transport.Op{Peer: 1, Slot: 1 << 63}
		buf, kept := watched(100)
		op.Buf = buf
		op.Begin()
		m.mu.Lock()
		defer m.mu.Unlock()
		c := m.mu.conns[1]
		c.post(op)
		c.openNext() // the socket does not take it
		m.lose(cohort.New("test", cohort.PeerLost, "a rank is lost"))
		return kept
	}()
	isLetGo(t, "what was to be sent", kept)
}
