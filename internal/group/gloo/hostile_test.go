// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/store"
)

// TestUnidentifiedConnectionsAreHarmless opens all kinds of connections to the port while a world forms and works.
func TestUnidentifiedConnectionsAreHarmless(t *testing.T) {
	for _, generation := range []Generation{B, C, D} {
		t.Run(generation.String(), func(t *testing.T) {
			kv := store.NewMemory()
			defer func() { _ = kv.Close() }()
			ctx := within(t, 30*time.Second)
			meshes := make([]*Mesh, 2)
			var wg sync.WaitGroup
			errs := make([]error, 2)
			config := func(r int) Config {
				return Config{
					Rank: r, Size: 2, Store: kv, Prefix: "p", Generation: generation, Lazy: generation == D,
					Devices: []string{fmt.Sprintf("127.0.0.%d", 1+r)},
				}
			}
			wg.Go(func() { meshes[0], errs[0] = Connect(ctx, config(0)) }) // the smaller address listens
			raw, err := kv.Get(ctx, recordKey("p", 0, 0))
			if err != nil {
				t.Fatal(err)
			}
			record, err := gloowire.ParseRecord(raw, 2)
			if err != nil {
				t.Fatal(err)
			}
			port := record.Addrs[0].Addr.String()
			var visitors []net.Conn
			for i := range maxUnidentifiedConns + 20 {
				conn, err := net.Dial("tcp", port)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				visitors = append(visitors, conn)
				switch i % 5 {
				case 0: // sends nothing
				case 1:
					_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
				case 2:
					_, _ = conn.Write(gloowire.AppendPreamble(nil, 77))
				case 3:
					_, _ = conn.Write([]byte{1, 2, 3})
				case 4: // claims to be the listener itself, or, where identifiers cannot be guessed, the rank that it waits for
					claim := int64(1)
					if generation == D {
						claim = 0
					}
					_, _ = conn.Write(gloowire.AppendPreamble(nil, claim))
				}
			}
			wg.Go(func() { meshes[1], errs[1] = Connect(ctx, config(1)) })
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			runPlans(t, asLinks(meshes), 5, 10, 0)
			// A connection with an invalid hello was closed.
			for _, i := range []int{1, 2, 4} {
				_ = visitors[i].SetReadDeadline(time.Now().Add(soon))
				if n, err := visitors[i].Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("visitor %d got %d bytes, %v", i, n, err)
				}
			}
			for _, m := range meshes {
				wg.Go(func() { _ = m.Close() })
			}
			wg.Wait()
		})
	}
}

// TestGenerationATakesOnlyThePeersAddress connects to a pair's port from another address of this host first.
func TestGenerationATakesOnlyThePeersAddress(t *testing.T) {
	kv := store.NewMemory()
	defer func() { _ = kv.Close() }()
	ctx := within(t, 30*time.Second)
	meshes, errs := make([]*Mesh, 2), make([]error, 2)
	var wg sync.WaitGroup
	config := func(r int) Config {
		return Config{Rank: r, Size: 2, Store: kv, Prefix: "p", Generation: A, Devices: []string{fmt.Sprintf("127.0.0.%d", 1+r)}}
	}
	wg.Go(func() { meshes[0], errs[0] = Connect(ctx, config(0)) })
	raw, err := kv.Get(ctx, recordKey("p", 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	record, err := gloowire.ParseRecord(raw, 2)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
		conn, err := d.Dial("tcp", record.Addrs[0].Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(bytes.Repeat([]byte{0xff}, 200))
	}
	// PyTorch's dialler has the address that it published, as Go's has here by routing.
	wg.Go(func() {
		c := config(1)
		meshes[1], errs[1] = Connect(ctx, c)
	})
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	runPlans(t, asLinks(meshes), 5, 10, 0)
	for _, m := range meshes {
		wg.Go(func() { _ = m.Close() })
	}
	wg.Wait()
}

// hostile plays rank 1 by hand: it lets rank 0 connect and returns the raw connection.
func hostile(t *testing.T) (*Mesh, net.Conn) {
	t.Helper()
	kv := store.NewMemory()
	t.Cleanup(func() { _ = kv.Close() })
	ctx := within(t, 30*time.Second)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	record := gloowire.Record{
		Generation: C, Host: "evil", IDs: []int64{4711, 0},
		Addrs: []gloowire.Address{{Addr: netip.MustParseAddrPort(ln.Addr().String()), Sequence: gloowire.NoSequence}},
	}
	if err = kv.Set(ctx, recordKey("p", 0, 1), record.Append(nil)); err != nil {
		t.Fatal(err)
	}
	var mesh *Mesh
	var wg sync.WaitGroup
	wg.Go(func() {
		mesh, err = Connect(ctx, Config{Rank: 0, Size: 2, Store: kv, Prefix: "p", Generation: C, Devices: []string{"127.0.0.2"}})
	})
	conn, acceptErr := ln.Accept()
	wg.Wait()
	if err = errors.Join(err, acceptErr); err != nil {
		t.Fatal(err)
	}
	var hello [8]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil || gloowire.ParsePreamble(hello) != 4711 {
		t.Fatalf("preamble %x, %v", hello, err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = mesh.Close()
	})
	return mesh, conn
}

func frame(op gloowire.Opcode, slot, length uint64) []byte {
	b := make([]byte, gloowire.HeaderSize)
	gloowire.Frame{Opcode: op, Slot: slot, Length: length}.Put(b)
	return b
}

func TestHostilePeerLosesItsPair(t *testing.T) {
	for name, bytesSent := range map[string][]byte{
		"data that is too long": append(frame(gloowire.SendReady, 1, 100),
			append(frame(gloowire.Data, 1, 100), make([]byte, 100)...)...),
		"data without a receive":    append(frame(gloowire.SendReady, 2, 4), append(frame(gloowire.Data, 2, 4), 1, 2, 3, 4)...),
		"data without announcement": append(frame(gloowire.Data, 1, 4), 1, 2, 3, 4),
		"a huge length":             append(frame(gloowire.SendReady, 1, 1<<45), frame(gloowire.Data, 1, 1<<45)...),
		"garbage":                   bytes.Repeat([]byte("garbage!"), 12),
	} {
		t.Run(name, func(t *testing.T) {
			mesh, conn := hostile(t)
			room := make([]byte, 12)
			op := &transport.Op{Peer: 1, Slot: 1, Buf: room[:8]}
			mesh.Recv(op)
			if _, err := conn.Write(bytesSent); err != nil {
				t.Fatal(err)
			}
			err := mesh.Wait(within(t, soon), op)
			var e *cohort.Error
			if !errors.As(err, &e) || e.Code != cohort.Protocol || e.Rank != 1 || !strings.Contains(e.Peer, "evil") {
				t.Fatalf("want a protocol error of rank 1 on host evil: %v", err)
			}
			if !bytes.Equal(room, make([]byte, 12)) {
				t.Fatalf("bytes were written: %x", room)
			}
			// The peer sees its connection end.
			_ = conn.SetReadDeadline(time.Now().Add(soon))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) {
				t.Fatal("the connection was left open")
			}
		})
	}
}

func TestEndInTheMiddleOfAMessage(t *testing.T) {
	mesh, conn := hostile(t)
	op := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1<<20)}
	mesh.Recv(op)
	_, _ = conn.Write(append(frame(gloowire.SendReady, 1, 1<<20), append(frame(gloowire.Data, 1, 1<<20), make([]byte, 1000)...)...))
	_ = conn.Close()
	lostRank(t, mesh.Wait(within(t, soon), op), 1)
}

// TestAPeerThatStopsReading does not stop posting, and closing ends in bounded time.
func TestAPeerThatStopsReading(t *testing.T) {
	mesh, conn := hostile(t)
	const n = 64
	ops := make([]*transport.Op, n)
	for i := range ops {
		_, _ = conn.Write(frame(gloowire.RecvReady, uint64(i), 1<<20))
		ops[i] = &transport.Op{Peer: 1, Slot: uint64(i), Buf: make([]byte, 1<<20)}
		mesh.Send(ops[i]) // 64 MiB: far more than sockets hold
	}
	begin := time.Now()
	mesh.Fail(errors.New("enough"))
	for _, op := range ops {
		_ = mesh.Wait(within(t, soon), op)
		if !op.Completed() {
			t.Fatal("an op hangs on a peer that does not read")
		}
	}
	_ = mesh.Close()
	if d := time.Since(begin); d > soon {
		t.Fatalf("took %v", d)
	}
}
