// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// kinds are attacks by requests that are small to send and large, or long, to serve. internal/store/storecore counts what each of
// them costs; here they come over sockets.
func kinds() []attack {
	return []attack{
		{"large halves", largeHalves},
		{"compare_set unread", silent(func(b []byte) []byte { return wire.AppendCompareSet(b, wire.V, "/large", []byte("x"), nil) })},
		{"multi_get unread", silent(func(b []byte) []byte { return wire.AppendKeys(b, wire.V, wire.MultiGet, "/large", "/large") })},
		{"listings", listings},
		{"barriers", barriers},
		{"keys that come and go", toggles},
		{"statistics", statistics},
		{"claims", claimEverything},
	}
}

// setLarge stores a value that the others ask for.
func setLarge(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	_, _ = c.Write(wire.AppendPing(wire.AppendSet(wire.AppendValidate(nil), wire.V, "/large", make([]byte, 250<<10)), wire.V, 1))
	_, _ = io.ReadFull(c, make([]byte, 4))
}

func largeHalves(ctx context.Context, _ *testing.T, addr string) {
	set := wire.AppendSet(wire.AppendValidate(nil), wire.V, "/half", make([]byte, 1<<20))
	each(ctx, addr, 200, time.Millisecond, func(c net.Conn, r *rand.Rand) {
		_, _ = c.Write(set[:65<<10+r.IntN(len(set)-65<<10)])
		_, _ = io.Copy(io.Discard, c) // until it is cut
	})
}

// silent asks and does not read.
func silent(request func([]byte) []byte) func(ctx context.Context, t *testing.T, addr string) {
	return func(ctx context.Context, t *testing.T, addr string) {
		t.Helper()
		setLarge(t, addr)
		var many []byte
		for range 500 {
			many = request(many)
		}
		each(ctx, addr, 300, time.Millisecond, func(c net.Conn, _ *rand.Rand) {
			_, err := c.Write(wire.AppendValidate(nil))
			for err == nil {
				_, err = c.Write(many)
			}
		})
	}
}

// flood sends the same again and again, and reads what comes.
func flood(ctx context.Context, addr string, workers int, first, again []byte) {
	each(ctx, addr, workers, 10*time.Millisecond, func(c net.Conn, _ *rand.Rand) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		if _, err := c.Write(first); err != nil {
			return
		}
		for ctx.Err() == nil {
			if _, err := c.Write(again); err != nil {
				return
			}
		}
	})
}

func listings(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	first := wire.AppendValidate(nil)
	for i := range 20_000 {
		first = wire.AppendSet(first, wire.V, fmt.Sprint("/listed/", i), nil)
	}
	flood(ctx, addr, 4, first, bytes.Repeat(wire.AppendPlain(nil, wire.V, wire.ListKeys), 1000))
}

func barriers(ctx context.Context, _ *testing.T, addr string) {
	flood(ctx, addr, 8, wire.AppendValidate(nil), bytes.Repeat(wire.AppendBarrier(nil, wire.V, "/barrier", 1<<40), 1000))
}

func toggles(ctx context.Context, _ *testing.T, addr string) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("/toggled/", i)
	}
	first := wire.AppendUpgrade(wire.AppendMultiSet(wire.AppendValidate(nil), wire.V, keys[2:], make([][]byte, len(keys)-2)))
	for i := range 100 {
		first = append(first, nativeFrame(uint32(i),
			func(b []byte) []byte { return wire.AppendKeys(b, wire.Native, wire.Wait, keys...) })...)
	}
	var again []byte
	for i := range 1000 {
		again = append(again, nativeFrame(uint32(1000+2*i),
			func(b []byte) []byte { return wire.AppendSet(b, wire.Native, keys[0], nil) })...)
		again = append(again, nativeFrame(uint32(1001+2*i),
			func(b []byte) []byte { return wire.AppendKey(b, wire.Native, wire.DeleteKey, keys[0]) })...)
	}
	flood(ctx, addr, 4, first, again)
}

func statistics(ctx context.Context, _ *testing.T, addr string) {
	first := wire.AppendUpgrade(wire.AppendValidate(nil))
	for i := range 10_000 {
		first = append(first, nativeFrame(uint32(i),
			func(b []byte) []byte { return wire.AppendKeys(b, wire.Native, wire.Wait, "/never") })...)
	}
	var again []byte
	for i := range 100 {
		again = append(again, nativeFrame(uint32(20_000+i),
			func(b []byte) []byte { return wire.AppendPlain(b, wire.Native, wire.Stats) })...)
	}
	flood(ctx, addr, 4, first, again)
}

func claimEverything(ctx context.Context, _ *testing.T, addr string) {
	each(ctx, addr, 8, time.Millisecond, func(c net.Conn, r *rand.Rand) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		b := wire.AppendUpgrade(wire.AppendValidate(nil))
		for i := range 1000 {
			b = append(b, nativeFrame(uint32(i), func(b []byte) []byte {
				return wire.AppendCompareSet(b, wire.Native, fmt.Sprint(wire.ClaimPrefix, "rank/", r.Uint64()), nil, []byte("x"))
			})...)
		}
		_, _ = c.Write(b)
		sleep(ctx, 5*time.Millisecond)
	})
}

func nativeFrame(id uint32, write func([]byte) []byte) []byte {
	return wire.EndFrame(write(wire.BeginFrame(nil, id)), 0, 0)
}

// TestServerHostileKinds has an honest PyTorch client store and read a megabyte, and a Go client claim its rank, while each
// attack goes on: both are served, the memory limit holds, and the server ends when it is told to.
func TestServerHostileKinds(t *testing.T) {
	for _, a := range kinds() {
		t.Run(a.name, func(t *testing.T) {
			noLeaks(t)
			const memory = 64 << 20
			s, err := Listen("127.0.0.1:0", WithLimits(Limits{Memory: memory}))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			addr := s.Addr().String()
			before := s.Stats()
			stop := startAttack(t, a.name, addr)
			defer stop()
			testkit.Until(t, a.name, func() (full bool) {
				s.serving.Do(func(c *storeserve.Core) { full = c.Machine.Queued() })
				return full || s.Stats().Requests() > before.Requests()+1000
			})
			worst := time.Duration(0)
			for round := range 2 {
				start := time.Now()
				c := dialV(t, s)
				_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
				key := fmt.Sprint("/honest/", round)
				write(t, c, wire.AppendSet(nil, wire.V, key, make([]byte, 1<<20)))
				write(t, c, wire.AppendKey(nil, wire.V, wire.Get, key))
				read(t, c, 1<<20+8)
				write(t, c, wire.AppendKey(nil, wire.V, wire.DeleteKey, key))
				read(t, c, 8)
				_ = c.Close()
				g := dialTest(t, s)
				if got, err := g.Claim(t.Context(), fmt.Sprint("rank/", round), "", "me"); got != "me" || err != nil {
					t.Errorf("a Go rank cannot join: %q, %v", got, err)
				}
				worst = max(worst, time.Since(start))
				if held := s.Stats().Memory; held > memory {
					t.Errorf("%d bytes are held, the limit is %d", held, memory)
				}
			}
			start := time.Now()
			_ = s.Close()
			t.Logf("%-22s slowest round %v, end after %v", a.name, worst.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("the server took %v to end", took)
			}
		})
	}
}
