// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
)

// TestBeatsWhileConnecting: a rank that still waits for another one notifies those that it is connected to that it lives: they may have
// all their connections, and count its silence.
func TestBeatsWhileConnecting(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var listeners []net.Listener
	var peers []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		listeners, peers = append(listeners, l), append(peers, l.Addr().String())
	}
	type outcome struct {
		m   *Mesh
		err error
	}
	done := make(chan outcome, 1)
	cfg := Config{Rank: 1, Size: 3, Listener: listeners[1], Peers: peers, Heartbeat: 200 * time.Millisecond}
	go func() {
		m, err := Connect(ctx, cfg)
		done <- outcome{m, err}
	}()
	// Rank 0 takes the hello of rank 1 and does not answer it yet.
	zero, err := listeners[0].Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zero.Close() }()
	if _, err = readHello(zero); err != nil {
		t.Fatal(err)
	}
	two, err := net.Dial("tcp", peers[1])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = two.Close() }()
	sayHello(t, two, nativewire.Hello{From: 2, To: 1})
	if _, err = readHello(two); err != nil {
		t.Fatal(err)
	}
	_ = two.SetReadDeadline(time.Now().Add(time.Minute))
	for range 3 {
		readBeat(t, two)
	}
	select {
	case o := <-done:
		t.Fatalf("rank 1 is through without rank 0: %v", o.err)
	default:
	}
	sayHello(t, zero, nativewire.Hello{From: 0, To: 1})
	o := <-done
	if o.err != nil {
		t.Fatal(o.err)
	}
	for range 3 { // now of the mesh, which finds the stream in order
		readBeat(t, two)
	}
	_ = two.Close()
	_ = zero.Close()
	_ = o.m.Close()
}

func sayHello(t *testing.T, c net.Conn, h nativewire.Hello) {
	t.Helper()
	h.Version, h.Size, h.Window, h.Lanes = nativewire.Version, 3, defaultWindow, 1
	var buf [nativewire.HelloSize]byte
	h.Put(buf[:])
	if _, err := c.Write(buf[:]); err != nil {
		t.Fatal(err)
	}
}

func readBeat(t *testing.T, c net.Conn) {
	t.Helper()
	var buf [nativewire.HeaderSize]byte
	if _, err := io.ReadFull(c, buf[:]); err != nil {
		t.Fatalf("no beat: %v", err)
	}
	if h, err := nativewire.Parse(buf[:]); err != nil || h.Type != nativewire.Beat {
		t.Fatalf("%v, %v instead of a beat", h, err)
	}
}
