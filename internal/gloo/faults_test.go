// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/faultnet"
	"github.com/cohort-dist/cohort/internal/gloo/wire"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/testlog"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// soon is the liveness bound of what must happen at once, with margin for a busy machine.
const soon = 5 * time.Second

func within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tb.Cleanup(cancel)
	return ctx
}

// lostRank checks that err is a PeerLost that names rank.
func lostRank(t *testing.T, err error, rank int) {
	t.Helper()
	var e *dist.Error
	if !errors.As(err, &e) || e.Code != dist.PeerLost || e.Rank != dist.Rank(rank) {
		t.Fatalf("want peer lost of rank %d, got %v", rank, err)
	}
	if e.Peer == "" {
		t.Fatalf("the error does not say where the peer was: %v", err)
	}
}

func TestDeathOfAPeerEndsOnlyItsOps(t *testing.T) {
	for _, generation := range []Generation{A, C} {
		t.Run(generation.String(), func(t *testing.T) {
			meshes := connectWorld(t, 3, func(_ int, c *Config) { c.Generation = generation })
			dead := &link.Op{Peer: 2, Slot: 1, Buf: make([]byte, 4)}
			deadSend := &link.Op{Peer: 2, Slot: 2, Buf: make([]byte, 4)}
			alive := &link.Op{Peer: 1, Slot: 1, Buf: make([]byte, 4)}
			either := &link.Op{Peer: link.AnyPeer, Slot: 3, Buf: make([]byte, 4)}
			onlyDead := &link.Op{Peer: link.AnyPeer, Slot: 4, From: []int{2}, Buf: make([]byte, 4)}
			for _, op := range []*link.Op{dead, alive, either, onlyDead} {
				meshes[0].Recv(op)
			}
			meshes[0].Send(deadSend)
			meshes[2].Fail(errors.New("killed"))
			ctx := within(t, soon)
			for _, op := range []*link.Op{dead, deadSend, onlyDead} {
				lostRank(t, meshes[0].Wait(ctx, op), 2)
			}
			later := &link.Op{Peer: 2, Slot: 9}
			meshes[0].Send(later)
			lostRank(t, meshes[0].Wait(ctx, later), 2)
			for slot, op := range map[uint64]*link.Op{1: alive, 3: either} {
				send := &link.Op{Peer: 0, Slot: slot, Buf: []byte("fine")}
				meshes[1].Send(send)
				if err := meshes[0].Wait(ctx, op); err != nil || string(op.Buf) != "fine" || op.Source != 1 {
					t.Fatalf("a pair that is alive: %v, %q", err, op.Buf)
				}
				if err := meshes[1].Wait(ctx, send); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestEndOfLifeIsQuiet(t *testing.T) {
	var log testlog.Log
	meshes := connectWorld(t, 3, func(_ int, c *Config) {
		c.Logger = log.Logger(slog.LevelWarn)
	})
	runPlans(t, asLinks(meshes), 3, 5, 0)
	for _, m := range meshes {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatalf("second close: %v", err)
		}
	}
	if log.String() != "" {
		t.Fatalf("a normal end was logged:\n%s", log.String())
	}
}

func TestClosedMesh(t *testing.T) {
	meshes := connectWorld(t, 2, nil)
	pending := &link.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
	meshes[0].Recv(pending)
	_ = meshes[0].Close()
	later := &link.Op{Peer: 1, Slot: 1}
	meshes[0].Send(later)
	for _, op := range []*link.Op{pending, later} {
		if err := meshes[0].Wait(within(t, soon), op); !errors.Is(err, dist.Closed) {
			t.Fatal(err)
		}
	}
}

// TestCloseSendsWhatIsQueued closes when the last byte was handed to the kernel, and when most bytes were not.
func TestCloseSendsWhatIsQueued(t *testing.T) {
	const size = 32 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for _, wait := range []bool{true, false} {
		meshes := connectWorld(t, 2, nil)
		ctx := within(t, 4*soon)
		send := &link.Op{Peer: 1, Slot: 1, Buf: data}
		recv := &link.Op{Peer: 0, Slot: 1, Buf: make([]byte, size)}
		meshes[1].Recv(recv)
		// When this message has come, the offer before it has, too: the data is then queued at once.
		meshes[1].Send(&link.Op{Peer: 0, Slot: 2})
		ready := &link.Op{Peer: 1, Slot: 2}
		meshes[0].Recv(ready)
		if err := meshes[0].Wait(ctx, ready); err != nil {
			t.Fatal(err)
		}
		meshes[0].Send(send)
		if wait {
			if err := meshes[0].Wait(ctx, send); err != nil {
				t.Fatal(err)
			}
		}
		_ = meshes[0].Close()
		if err := meshes[0].Wait(ctx, send); err != nil {
			t.Fatalf("waited %v: the send was matched, but ended with %v", wait, err)
		}
		if err := meshes[1].Wait(ctx, recv); err != nil {
			t.Fatalf("waited %v: %v", wait, err)
		}
		if !bytes.Equal(recv.Buf, data) {
			t.Fatalf("waited %v: data was lost by closing", wait)
		}
	}
}

func TestFailReachesEverybody(t *testing.T) {
	meshes := connectWorld(t, 3, nil)
	ops := make([]*link.Op, 3)
	for r := range 3 {
		ops[r] = &link.Op{Peer: (r + 1) % 3, Slot: 1, Buf: make([]byte, 8)}
		meshes[r].Recv(ops[r])
	}
	reason := dist.New("test", dist.Mismatch, "reason")
	meshes[1].Fail(reason)
	ctx := within(t, soon)
	if err := meshes[1].Wait(ctx, ops[1]); !errors.Is(err, dist.Mismatch) {
		t.Fatalf("its own op: %v", err)
	}
	lostRank(t, meshes[0].Wait(ctx, ops[0]), 1)
	if err := meshes[1].Err(); !errors.Is(err, dist.Mismatch) {
		t.Fatal(err)
	}
}

func TestCollectiveTimeoutNamesTheRank(t *testing.T) {
	meshes := connectWorld(t, 3, nil)
	e := NewEngine(meshes[0])
	q := coll.Request{Kind: coll.AllReduce, DType: tensor.Float32, Out: make([]byte, 400), Timeout: 50 * time.Millisecond}
	err := e.Run(context.Background(), &q)
	var de *dist.Error
	if !errors.As(err, &de) || de.Code != dist.DeadlineExceeded || de.Rank != 1 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("want a timeout that names rank 1: %v", err)
	}
	if err = e.Run(context.Background(), &coll.Request{Kind: coll.Barrier, Tag: 1}); err == nil {
		t.Fatal("the group must stay failed")
	}
	// The others are told at once, with the reason.
	err = NewEngine(meshes[1]).Run(within(t, soon), &coll.Request{Kind: coll.Barrier})
	if !errors.As(err, &de) || de.Code != dist.DeadlineExceeded || de.Rank != 1 || !strings.Contains(err.Error(), "told by rank 0") {
		t.Fatalf("the late rank: %v", err)
	}
}

func TestSizeMismatchIsAnErrorEverywhere(t *testing.T) {
	for _, kind := range []coll.Kind{coll.AllReduce, coll.Broadcast, coll.AllGather} {
		t.Run(kind.String(), func(t *testing.T) {
			meshes := connectWorld(t, 3, nil)
			errs := make([]error, 3)
			var wg sync.WaitGroup
			for r := range 3 {
				wg.Go(func() {
					n := 400
					if r == 1 {
						n = 800
					}
					q := coll.Request{Kind: kind, DType: tensor.Float32, In: make([]byte, n), Out: make([]byte, n), Timeout: 4 * soon}
					if kind == coll.AllGather {
						q.Out = make([]byte, 3*n)
					}
					errs[r] = NewEngine(meshes[r]).Run(context.Background(), &q)
				})
			}
			wg.Wait()
			mismatch := false
			for r, err := range errs {
				switch dist.CodeOf(err) {
				case dist.Mismatch, dist.Protocol:
					mismatch = true
				case dist.PeerLost: // of the rank that noticed
				default:
					if err != nil || kind != coll.Broadcast { // the other ranks of a tree may be done
						t.Errorf("rank %d: %v", r, err)
					}
				}
			}
			if !mismatch {
				t.Errorf("nobody named the mismatch: %v", errs)
			}
		})
	}
}

func TestCancelOverSockets(t *testing.T) {
	meshes := connectWorld(t, 2, nil)
	ctx := within(t, soon)
	recv := &link.Op{Peer: 1, Slot: 1, Buf: make([]byte, 4)}
	meshes[0].Recv(recv)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := meshes[0].Wait(short, recv); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if !meshes[0].Cancel(recv) || meshes[0].Cancel(recv) {
		t.Fatal("an unmatched receive can be withdrawn, once")
	}
	if err := meshes[0].Wait(ctx, recv); !errors.Is(err, dist.Aborted) {
		t.Fatal(err)
	}
	send := &link.Op{Peer: 1, Slot: 2, Buf: []byte("gone")}
	meshes[0].Send(send)
	if !meshes[0].Cancel(send) {
		t.Fatal("an unmatched send can be withdrawn")
	}
	// The next ones on the same slots work, and the pair is in step.
	for slot := range uint64(3) {
		again := &link.Op{Peer: 1, Slot: slot, Buf: make([]byte, 4)}
		meshes[0].Recv(again)
		out := &link.Op{Peer: 1, Slot: slot, Buf: []byte("ping")}
		meshes[0].Send(out)
		back := &link.Op{Peer: 0, Slot: slot, Buf: []byte("pong")}
		meshes[1].Send(back)
		in := &link.Op{Peer: link.AnyPeer, Slot: slot, Buf: make([]byte, 4)}
		meshes[1].Recv(in)
		for _, op := range []*link.Op{again, out} {
			if err := meshes[0].Wait(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		for _, op := range []*link.Op{back, in} {
			if err := meshes[1].Wait(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		if string(again.Buf) != "pong" || string(in.Buf) != "ping" {
			t.Fatalf("%q %q", again.Buf, in.Buf)
		}
	}
}

// TestStrangersAreHarmless lets all kinds of visitors come to the port while a world forms and works.
func TestStrangersAreHarmless(t *testing.T) {
	for _, generation := range []Generation{B, C, D} {
		t.Run(generation.String(), func(t *testing.T) {
			kv := store.NewMemory()
			defer func() { _ = kv.Close() }()
			ctx := within(t, 30*time.Second)
			meshes := make([]*Mesh, 2)
			var wg sync.WaitGroup
			errs := make([]error, 2)
			config := func(r int) Config {
				return Config{Rank: r, Size: 2, Store: kv, Prefix: "p", Generation: generation, Lazy: generation == D, Devices: []string{fmt.Sprintf("127.0.0.%d", 1+r)}}
			}
			wg.Go(func() { meshes[0], errs[0] = Connect(ctx, config(0)) }) // the smaller address listens
			raw, err := kv.Get(ctx, recordKey("p", 0, 0))
			if err != nil {
				t.Fatal(err)
			}
			record, err := wire.ParseRecord(raw, 2)
			if err != nil {
				t.Fatal(err)
			}
			port := record.Addrs[0].Addr.String()
			var visitors []net.Conn
			for i := range maxStrangers + 20 {
				conn, err := net.Dial("tcp", port)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				visitors = append(visitors, conn)
				switch i % 5 {
				case 0: // says nothing
				case 1:
					_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
				case 2:
					_, _ = conn.Write(wire.AppendPreamble(nil, 77))
				case 3:
					_, _ = conn.Write([]byte{1, 2, 3})
				case 4: // claims to be the listener itself, or, where identifiers cannot be guessed, the rank that it waits for
					claim := int64(1)
					if generation == D {
						claim = 0
					}
					_, _ = conn.Write(wire.AppendPreamble(nil, claim))
				}
			}
			wg.Go(func() { meshes[1], errs[1] = Connect(ctx, config(1)) })
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			runPlans(t, asLinks(meshes), 5, 10, 0)
			// Whoever said something wrong was shown the door.
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
	record, err := wire.ParseRecord(raw, 2)
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
	record := wire.Record{
		Generation: C, Host: "evil", IDs: []int64{4711, 0},
		Addrs: []wire.Address{{Addr: netip.MustParseAddrPort(ln.Addr().String()), Sequence: wire.NoSequence}},
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
	if _, err := io.ReadFull(conn, hello[:]); err != nil || wire.ParsePreamble(hello) != 4711 {
		t.Fatalf("preamble %x, %v", hello, err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = mesh.Close()
	})
	return mesh, conn
}

func frame(op wire.Opcode, slot, length uint64) []byte {
	b := make([]byte, wire.HeaderSize)
	wire.Frame{Opcode: op, Slot: slot, Length: length}.Put(b)
	return b
}

func TestHostilePeerLosesItsPair(t *testing.T) {
	for name, bytesSent := range map[string][]byte{
		"data that is too long":     append(frame(wire.SendReady, 1, 100), append(frame(wire.Data, 1, 100), make([]byte, 100)...)...),
		"data nobody asked for":     append(frame(wire.SendReady, 2, 4), append(frame(wire.Data, 2, 4), 1, 2, 3, 4)...),
		"data without announcement": append(frame(wire.Data, 1, 4), 1, 2, 3, 4),
		"a huge length":             append(frame(wire.SendReady, 1, 1<<45), frame(wire.Data, 1, 1<<45)...),
		"garbage":                   bytes.Repeat([]byte("garbage!"), 12),
	} {
		t.Run(name, func(t *testing.T) {
			mesh, conn := hostile(t)
			room := make([]byte, 12)
			op := &link.Op{Peer: 1, Slot: 1, Buf: room[:8]}
			mesh.Recv(op)
			if _, err := conn.Write(bytesSent); err != nil {
				t.Fatal(err)
			}
			err := mesh.Wait(within(t, soon), op)
			var e *dist.Error
			if !errors.As(err, &e) || e.Code != dist.Protocol || e.Rank != 1 || !strings.Contains(e.Peer, "evil") {
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
	op := &link.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1<<20)}
	mesh.Recv(op)
	_, _ = conn.Write(append(frame(wire.SendReady, 1, 1<<20), append(frame(wire.Data, 1, 1<<20), make([]byte, 1000)...)...))
	_ = conn.Close()
	lostRank(t, mesh.Wait(within(t, soon), op), 1)
}

// TestAPeerThatStopsReading does not stop posting, and closing ends in bounded time.
func TestAPeerThatStopsReading(t *testing.T) {
	mesh, conn := hostile(t)
	const n = 64
	ops := make([]*link.Op, n)
	for i := range ops {
		_, _ = conn.Write(frame(wire.RecvReady, uint64(i), 1<<20))
		ops[i] = &link.Op{Peer: 1, Slot: uint64(i), Buf: make([]byte, 1<<20)}
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

// rewriter shows one rank's record with another port: the address of a proxy.
type rewriter struct {
	KV
	key  string
	port uint16
	size int
}

func (k rewriter) Get(ctx context.Context, key string) ([]byte, error) {
	raw, err := k.KV.Get(ctx, key)
	if err != nil || key != k.key {
		return raw, err
	}
	r, err := wire.ParseRecord(raw, k.size)
	if err != nil {
		return nil, err
	}
	for i := range r.Addrs {
		r.Addrs[i].Addr = netip.AddrPortFrom(r.Addrs[i].Addr.Addr(), k.port)
	}
	return r.Append(nil), nil
}

func portOf(ln net.Listener) uint16 { return netip.MustParseAddrPort(ln.Addr().String()).Port() }

// lateDial is a proxy's way to a target that is known only later.
type lateDial struct{ addr chan string }

func (l lateDial) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	a := <-l.addr
	l.addr <- a
	var d net.Dialer
	return d.DialContext(ctx, network, a)
}

// proxied is a world of two ranks with a proxy between them.
func proxied(t *testing.T) ([]*Mesh, *faultnet.Proxy) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := lateDial{make(chan string, 1)}
	proxy := faultnet.NewProxy(ln, "", target.dial)
	t.Cleanup(func() { _ = proxy.Close() })
	kv := store.NewMemory()
	t.Cleanup(func() { _ = kv.Close() })
	go func() {
		raw, err := kv.Get(context.Background(), recordKey("default_pg/0", 0, 0))
		if err != nil {
			return
		}
		if r, err := wire.ParseRecord(raw, 2); err == nil {
			target.addr <- r.Addrs[0].Addr.String()
		}
	}()
	meshes := connectWorld(t, 2, func(r int, c *Config) {
		c.Store = kv
		c.Devices = []string{fmt.Sprintf("127.0.0.%d", 1+r)} // rank 1 has the greater address and dials
		if r == 1 {
			c.Store = rewriter{kv, recordKey("default_pg/0", 0, 0), portOf(ln), 2}
		}
	})
	return meshes, proxy
}

func TestCutConnection(t *testing.T) {
	meshes, proxy := proxied(t)
	runPlans(t, asLinks(meshes), 1, 3, 0)
	ops := make([]*link.Op, 2)
	for r := range 2 {
		ops[r] = &link.Op{Peer: 1 - r, Slot: 7, Buf: make([]byte, 8)}
		meshes[r].Recv(ops[r])
	}
	proxy.Cut()
	for r := range 2 {
		lostRank(t, meshes[r].Wait(within(t, soon), ops[r]), 1-r)
	}
}

func TestDelayedAndHalfOpenConnection(t *testing.T) {
	meshes, proxy := proxied(t)
	proxy.SetUp(faultnet.Fault{Delay: 5 * time.Millisecond})
	proxy.SetDown(faultnet.Fault{Delay: 5 * time.Millisecond})
	runPlans(t, asLinks(meshes), 1, 3, 0)
	// Half open: bytes vanish. gloo has no heartbeat, so the operation's timeout ends it, and it names the rank.
	proxy.SetUp(faultnet.Fault{Swallow: true})
	proxy.SetDown(faultnet.Fault{Swallow: true})
	err := NewEngine(meshes[0]).Run(context.Background(), &coll.Request{Kind: coll.Barrier, Tag: 99, Timeout: 100 * time.Millisecond})
	var e *dist.Error
	if !errors.As(err, &e) || e.Code != dist.DeadlineExceeded || e.Rank != 1 {
		t.Fatalf("want a timeout that names rank 1: %v", err)
	}
}
