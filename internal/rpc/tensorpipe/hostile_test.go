// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/tensor"
)

// TestManyOpenRequests: a PyTorch caller may have tens of thousands of requests under way; it would not recover from a pipe
// that ended.
func TestManyOpenRequests(t *testing.T) {
	const n = 20_000
	client, server := pair(t)
	ctx := within(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint64(n) {
			if err := client.Send(ctx, rpcMessage(0x102, i, nil)); err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
		}
	})
	for i := range n {
		if _, err := server.Recv(ctx); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	wg.Wait()
}

// TestRequestsOverTheLimitWait: at the limit no more requests are read until one is answered; nothing is cut.
func TestRequestsOverTheLimitWait(t *testing.T) {
	client, server := pair(t, withLimits(peerLimits{Requests: 8}))
	ctx := within(t)
	for i := range uint64(9) {
		if err := client.Send(ctx, rpcMessage(0x102, i, nil)); err != nil {
			t.Fatal(err)
		}
	}
	for range 8 {
		if _, err := server.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if _, err := server.Recv(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the ninth request: %v", err)
	}
	next := make(chan error, 1)
	go func() {
		_, err := server.Recv(ctx)
		next <- err
	}()
	if err := server.Send(ctx, rpcMessage(0x203, 3, nil)); err != nil {
		t.Fatal(err)
	}
	if err := <-next; err != nil {
		t.Fatalf("after an answer: %v", err)
	}
	go func() {
		_, err := server.Recv(ctx)
		next <- err
	}()
	_ = server.Close()
	if err := <-next; !errors.Is(err, cohort.Closed) {
		t.Fatalf("after Close: %v", err)
	}
}

// TestUnreadAnswersAreBounded: the bytes of answers to a peer that does not read are bounded, and a refusal still gets through.
func TestUnreadAnswersAreBounded(t *testing.T) {
	const size, limit = 8 << 20, 32<<20 + 4096
	client, server := pair(t, withLimits(peerLimits{Waiting: limit}))
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	const n = 20
	for i := range uint64(n) {
		if err := client.Send(ctx, rpcMessage(0x102, i, nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, n)
	for i := range uint64(n) {
		go func() { done <- server.Send(ctx, rpcMessage(0x203, i, nil, make([]byte, size))) }()
	}
	for range n - limit/size {
		if err := <-done; !errors.Is(err, cohort.Exhausted) && err != nil {
			t.Fatal(err)
		}
	}
	if now := server.answers.Load(); now > limit {
		t.Errorf("%d bytes wait, the limit is %d", now, limit)
	}
	got := 0
	for got < limit/size {
		if _, err := client.Recv(ctx); err != nil {
			t.Fatal(err)
		}
		got++
	}
	cancel()
	for range limit / size {
		<-done
	}
}

// TestClaimedStorages: a descriptor that announces a gigabyte costs the receiver no gigabyte.
func TestClaimedStorages(t *testing.T) {
	for _, channel := range []string{ChannelBasic, ChannelMPT} {
		t.Run(channel, func(t *testing.T) {
			var largest atomic.Int64
			client, server := pair(t, WithChannels(channel), WithAlloc(func(n int) (*tensor.Storage, error) {
				largest.Store(max(largest.Load(), int64(n)))
				return tensor.NewStorage(min(n, 128<<20))
			}))
			d := descriptor{
				Payloads: []uint64{4, 8, 0, uint64(len(emptyTable))},
				Storages: []storageDescriptor{{Length: 1 << 30, Source: cpu, Target: cpu}},
			}
			if err := client.main.writeFrames(d.Append(nil)); err != nil {
				t.Fatal(err)
			}
			first, lane := 1<<30, client.chann.lanes[0]
			if channel == ChannelMPT {
				_, first = piece(1<<30, 0, mptLanes)
			}
			if _, err := lane.nc.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(first)), make([]byte, 1000)...)); err != nil {
				t.Fatal(err)
			}
			_ = client.Close()
			if _, err := server.Recv(within(t)); err == nil {
				t.Fatal("a message that did not come was received")
			}
			if largest.Load() > 64<<20 {
				t.Errorf("%d bytes were allocated for 1000 that came", largest.Load())
			}
		})
	}
}

// TestHalfHellosDoNotKeepWorkersOut fills the listener with connections in every state of the handshake.
func TestHalfHellosDoNotKeepWorkersOut(t *testing.T) {
	t.Parallel()
	const limit = 64
	packet, brochure := offerer{Name: "x", Channels: []string{ChannelBasic}}.Hello()
	whole := appendFrame(appendFrame(nil, packet), brochure)
	for name, begin := range map[string][]byte{
		"nothing": nil, "half a length": whole[:4], "half a packet": whole[:12], "a packet": appendFrame(nil, packet),
		"half a brochure": whole[:len(whole)-3],
		"a brochure":      whole, "an unknown registration": appendFrame(nil, packetFrame{Requested: true, ID: 5}.Append(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ep := listen(t, "b", withLimits(peerLimits{Halfway: limit}))
			var conns []net.Conn
			defer func() {
				for _, c := range conns {
					_ = c.Close()
				}
			}()
			for range 3 * limit {
				c, err := net.Dial("tcp", ep.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
				_, _ = c.Write(begin)
			}
			a := listen(t, "a")
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			s, err := a.Dial(ctx, ep.Addr().String())
			if err != nil {
				t.Fatalf("a worker was kept out: %v", err)
			}
			_ = s.Close()
		})
	}
}

func TestUnidentifiedConnsShareFairly(t *testing.T) {
	s := newUnidentified(4)
	conn := func(host string) net.Conn { return addressed{host: host} }
	quiet, _ := s.admit(conn("10.0.0.1"))
	var flood []*unidentifiedConn
	for range 3 {
		x, evicted := s.admit(conn("10.0.0.66"))
		if evicted != nil {
			t.Fatal("a connection was evicted below the limit")
		}
		flood = append(flood, x)
	}
	s.helloReceived(flood[0])
	for i := range 10 {
		_, evicted := s.admit(conn("10.0.0.66"))
		if evicted == quiet || evicted == flood[0] {
			t.Fatalf("round %d: the wrong one had to go: %s", i, evicted.host)
		}
	}
	if len(s.mu.list) != 4 {
		t.Errorf("%d are noted", len(s.mu.list))
	}
	s.leave(quiet)
	s.leave(quiet)
	if len(s.mu.list) != 3 || s.mu.hosts["10.0.0.1"] != 0 {
		t.Errorf("left are %d, %v", len(s.mu.list), s.mu.hosts)
	}
}

// addressed is a connection that has nothing but the address of its other side.
type addressed struct {
	net.Conn
	host string
}

func (a addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(a.host), Port: 1} }

// secrets are what workers have published under their names.
type secrets map[string]string

func (s secrets) worker(t *testing.T, name, secret string, incarnation uint64) *Endpoint {
	t.Helper()
	return goWorkerWith(t, name, cohortwire.Config{
		Identity: cohortwire.Identity{Incarnation: incarnation}, Secret: []byte(secret),
		Published: func(id cohortwire.Identity) ([]byte, error) { return []byte(s[id.Name]), nil },
	})
}

// TestImpostorDoesNotTakeASlot: a process that claims the name of a worker, with another incarnation or insisting on the
// same one, does not become the session for what is asked of that name, and the genuine link lives on.
func TestImpostorDoesNotTakeASlot(t *testing.T) {
	store := secrets{"a": "secret of a", "b": "secret of b"}
	b := store.worker(t, "b", "secret of b", 1)
	a := store.worker(t, "a", "secret of a", 1)
	genuine, err := b.Connect(within(t), "a", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	callLink(t, genuine, "a")
	for _, c := range []struct {
		incarnation uint64
		insist      bool
	}{{99, false}, {99, true}, {1, true}} {
		impostor := store.worker(t, "a", "guessed", c.incarnation)
		if taken, _, dialErr := impostor.dial(b.Addr().String(), true, c.insist); dialErr == nil {
			select {
			case <-taken.Done(): // the first connection has ended learned that it was refused
			case <-within(t).Done():
				t.Errorf("%+v: the impostor was let in", c)
			}
		}
		var s *Session
		if s, err = b.Connect(within(t), "a", a.Addr().String()); err != nil || s != genuine {
			t.Fatalf("%+v: another session with a: %v", c, err)
		}
		callLink(t, s, "a")
	}
	// A worker that has just started and proves it replaces its former self.
	again := store.worker(t, "a", "secret of a", 2)
	if _, err = again.Connect(within(t), "b", b.Addr().String()); err != nil {
		t.Fatal(err)
	}
	<-genuine.Done()
}

// TestImpostorDoesNotBlockADial: a process that claims a name and then sends nothing more does not keep us from dialling it.
func TestImpostorDoesNotBlockADial(t *testing.T) {
	store := secrets{"a": "secret of a", "b": "secret of b"}
	b := store.worker(t, "b", "secret of b", 1)
	a := store.worker(t, "a", "secret of a", 1)
	packet, brochure := offerer{Name: "a", Channels: []string{ChannelBasic}, Cohort: &cohortAd{Incarnation: 7}}.Hello()
	c, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err = c.Write(appendFrame(appendFrame(nil, packet), brochure)); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Read(make([]byte, 100)); err != nil { // it was answered: the place is kept for it
		t.Fatal(err)
	}
	begun := time.Now()
	s, err := b.Connect(within(t), "a", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	callLink(t, s, "a")
	if took := time.Since(begun); took > 5*insistAfter {
		t.Errorf("it took %v", took)
	}
}

// TestUnprovenLinkIsNotASession: a name that has published no secret can be claimed by any process. Its link may send requests, and gets
// nothing that is asked of that name.
func TestUnprovenLinkIsNotASession(t *testing.T) {
	store := secrets{"b": "secret of b"}
	b := store.worker(t, "b", "secret of b", 1)
	impostor := store.worker(t, "c", "whatever", 1)
	s, _, err := impostor.dial(b.Addr().String(), true, false)
	if err != nil {
		t.Fatal(err)
	}
	callLink(t, s, "b")
	if arrived, err := b.Accept(within(t)); err != nil || arrived.Peer != "c" {
		t.Fatalf("%+v, %v", arrived, err)
	}
	if _, err := b.Connect(within(t), "c", impostor.Addr().String()); !errors.Is(err, cohort.Mismatch) {
		t.Errorf("what came under the name is its session: %v", err)
	}
}

// TestWrongListener: an impostor at the address of a worker is found by the dialling side.
func TestWrongListener(t *testing.T) {
	store := secrets{"a": "secret of a", "b": "secret of b"}
	b := store.worker(t, "b", "secret of b", 1)
	impostor := store.worker(t, "a", "guessed", 1)
	if _, err := b.Connect(within(t), "a", impostor.Addr().String()); err == nil {
		t.Error("the impostor was taken for a")
	}
	unpublished := store.worker(t, "c", "whatever", 1)
	if _, err := b.Connect(within(t), "c", unpublished.Addr().String()); !errors.Is(err, cohort.Mismatch) {
		t.Errorf("a name that has published nothing: %v", err)
	}
}
