// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
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
	var e *cohort.Error
	if !errors.As(err, &e) || e.Code != cohort.PeerLost || e.Rank != cohort.Rank(rank) {
		t.Fatalf("want peer lost of rank %d, got %v", rank, err)
	}
	if e.Peer == "" {
		t.Fatalf("the error does not name the peer's address: %v", err)
	}
}

func TestDeathOfAPeerEndsOnlyItsOps(t *testing.T) {
	for _, generation := range []Generation{A, C} {
		t.Run(generation.String(), func(t *testing.T) {
			meshes := connectWorld(t, 3, func(_ int, c *Config) { c.Generation = generation })
			dead := &transport.Op{Peer: 2, Slot: 1, Buf: make([]byte, 4)}
			deadSend := &transport.Op{Peer: 2, Slot: 2, Buf: make([]byte, 4)}
			alive := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 4)}
			either := &transport.Op{Peer: transport.AnyPeer, Slot: 3, Buf: make([]byte, 4)}
			onlyDead := &transport.Op{Peer: transport.AnyPeer, Slot: 4, From: []int{2}, Buf: make([]byte, 4)}
			for _, op := range []*transport.Op{dead, alive, either, onlyDead} {
				meshes[0].Recv(op)
			}
			meshes[0].Send(deadSend)
			meshes[2].Fail(errors.New("killed"))
			ctx := within(t, soon)
			for _, op := range []*transport.Op{dead, deadSend, onlyDead} {
				lostRank(t, meshes[0].Wait(ctx, op), 2)
			}
			later := &transport.Op{Peer: 2, Slot: 9}
			meshes[0].Send(later)
			lostRank(t, meshes[0].Wait(ctx, later), 2)
			for slot, op := range map[uint64]*transport.Op{1: alive, 3: either} {
				send := &transport.Op{Peer: 0, Slot: slot, Buf: []byte("fine")}
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
	var log testkit.Log
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
	pending := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
	meshes[0].Recv(pending)
	_ = meshes[0].Close()
	later := &transport.Op{Peer: 1, Slot: 1}
	meshes[0].Send(later)
	for _, op := range []*transport.Op{pending, later} {
		if err := meshes[0].Wait(within(t, soon), op); !errors.Is(err, cohort.Closed) {
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
		send := &transport.Op{Peer: 1, Slot: 1, Buf: data}
		recv := &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, size)}
		meshes[1].Recv(recv)
		// When this message has arrived, the offer before it has, too: the data is then queued at once.
		meshes[1].Send(&transport.Op{Peer: 0, Slot: 2})
		ready := &transport.Op{Peer: 1, Slot: 2}
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

func TestFailReachesAllRanks(t *testing.T) {
	meshes := connectWorld(t, 3, nil)
	ops := make([]*transport.Op, 3)
	for r := range 3 {
		ops[r] = &transport.Op{Peer: (r + 1) % 3, Slot: 1, Buf: make([]byte, 8)}
		meshes[r].Recv(ops[r])
	}
	reason := cohort.New("test", cohort.Mismatch, "reason")
	meshes[1].Fail(reason)
	ctx := within(t, soon)
	if err := meshes[1].Wait(ctx, ops[1]); !errors.Is(err, cohort.Mismatch) {
		t.Fatalf("its own op: %v", err)
	}
	lostRank(t, meshes[0].Wait(ctx, ops[0]), 1)
	if err := meshes[1].Err(); !errors.Is(err, cohort.Mismatch) {
		t.Fatal(err)
	}
}

// The rank that was waited for is named and not blamed: it may wait for another one.
func TestCollectiveTimeoutNamesTheRank(t *testing.T) {
	meshes := connectWorld(t, 3, nil)
	e := NewEngine(meshes[0])
	q := collective.Request{Kind: collective.AllReduce, DType: tensor.Float32, Out: make([]byte, 400), Timeout: 50 * time.Millisecond}
	err := e.Run(context.Background(), &q)
	var de *cohort.Error
	if !errors.As(err, &de) || de.Code != cohort.DeadlineExceeded || de.Rank != cohort.NoRank ||
		!strings.Contains(err.Error(), "it waits for rank 1") || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("want a timeout that names rank 1: %v", err)
	}
	if err = e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: 1}); err == nil {
		t.Fatal("the group must stay failed")
	}
	// The others are notified at once, with the reason.
	err = NewEngine(meshes[1]).Run(within(t, soon), &collective.Request{Kind: collective.Barrier})
	if !errors.As(err, &de) || de.Code != cohort.DeadlineExceeded || de.Rank != cohort.NoRank ||
		!strings.Contains(err.Error(), "it waits for rank 1 (reported by rank 0)") {
		t.Fatalf("the late rank: %v", err)
	}
}

func TestSizeMismatchIsAnErrorEverywhere(t *testing.T) {
	for _, kind := range []collective.Kind{collective.AllReduce, collective.Broadcast, collective.AllGather} {
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
					q := collective.Request{Kind: kind, DType: tensor.Float32, In: make([]byte, n), Out: make([]byte, n), Timeout: 4 * soon}
					if kind == collective.AllGather {
						q.Out = make([]byte, 3*n)
					}
					errs[r] = NewEngine(meshes[r]).Run(context.Background(), &q)
				})
			}
			wg.Wait()
			mismatch := false
			for r, err := range errs {
				switch cohort.CodeOf(err) {
				case cohort.Mismatch, cohort.Protocol:
					mismatch = true
				case cohort.PeerLost: // of the rank that noticed
				default:
					if err != nil || kind != collective.Broadcast { // the other ranks of a tree may be done
						t.Errorf("rank %d: %v", r, err)
					}
				}
			}
			if !mismatch {
				t.Errorf("no rank reported the mismatch: %v", errs)
			}
		})
	}
}

func TestCancelOverSockets(t *testing.T) {
	meshes := connectWorld(t, 2, nil)
	ctx := within(t, soon)
	recv := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 4)}
	meshes[0].Recv(recv)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := meshes[0].Wait(short, recv); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if !meshes[0].Cancel(recv) || meshes[0].Cancel(recv) {
		t.Fatal("an unmatched receive can be withdrawn, once")
	}
	if err := meshes[0].Wait(ctx, recv); !errors.Is(err, cohort.Aborted) {
		t.Fatal(err)
	}
	send := &transport.Op{Peer: 1, Slot: 2, Buf: []byte("gone")}
	meshes[0].Send(send)
	if !meshes[0].Cancel(send) {
		t.Fatal("an unmatched send can be withdrawn")
	}
	// The next ones on the same slots work, and the pair is in step.
	for slot := range uint64(3) {
		again := &transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, 4)}
		meshes[0].Recv(again)
		out := &transport.Op{Peer: 1, Slot: slot, Buf: []byte("ping")}
		meshes[0].Send(out)
		back := &transport.Op{Peer: 0, Slot: slot, Buf: []byte("pong")}
		meshes[1].Send(back)
		in := &transport.Op{Peer: transport.AnyPeer, Slot: slot, Buf: make([]byte, 4)}
		meshes[1].Recv(in)
		for _, op := range []*transport.Op{again, out} {
			if err := meshes[0].Wait(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		for _, op := range []*transport.Op{back, in} {
			if err := meshes[1].Wait(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		if string(again.Buf) != "pong" || string(in.Buf) != "ping" {
			t.Fatalf("%q %q", again.Buf, in.Buf)
		}
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
	r, err := gloowire.ParseRecord(raw, k.size)
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
		if r, err := gloowire.ParseRecord(raw, 2); err == nil {
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
	ops := make([]*transport.Op, 2)
	for r := range 2 {
		ops[r] = &transport.Op{Peer: 1 - r, Slot: 7, Buf: make([]byte, 8)}
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
	err := NewEngine(meshes[0]).Run(context.Background(),
		&collective.Request{Kind: collective.Barrier, Tag: 99, Timeout: 100 * time.Millisecond})
	var e *cohort.Error
	if !errors.As(err, &e) || e.Code != cohort.DeadlineExceeded || !strings.Contains(err.Error(), "it waits for rank 1") {
		t.Fatalf("want a timeout that names rank 1: %v", err)
	}
}
