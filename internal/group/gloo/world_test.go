// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/group/transport/memtransport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connectWorld makes a world of Go ranks over real sockets.
func connectWorld(tb testing.TB, size int, change func(rank int, c *Config)) []*Mesh {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	kv := store.NewMemory()
	tb.Cleanup(func() { _ = kv.Close() })
	meshes, errs := make([]*Mesh, size), make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			c := Config{Rank: r, Size: size, Store: kv, Prefix: "default_pg/0", Generation: C, Devices: []string{"127.0.0.1"}}
			if change != nil {
				change(r, &c)
			}
			meshes[r], errs[r] = Connect(ctx, c)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, m := range meshes {
			if m != nil {
				_ = m.Close()
			}
		}
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		for _, m := range meshes {
			wg.Go(func() { _ = m.Close() })
		}
		wg.Wait()
	})
	return meshes
}

// each runs f for every rank at once and fails the test on the first error.
func each(tb testing.TB, size int, f func(rank int) error) {
	tb.Helper()
	if err := testkit.EachRank(size, f); err != nil {
		tb.Fatal(err)
	}
}

func ints(values ...int64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// call is one collective with the inputs and expected outputs of all ranks.
type call struct {
	req  collective.Request
	reqs []collective.Request
	want [][]byte
}

// plan makes a random collective for a world of size ranks, with the result of a simple reference.
func plan(rng *rand.Rand, size int, tag uint32, large bool) call {
	c := call{req: collective.Request{
		Kind: collective.Kind(rng.IntN(10)), Tag: tag, Root: rng.IntN(size), DType: tensor.Int64,
		Op: reduce.Sum, Timeout: 20 * time.Second,
	}}
	n := []int{0, 1, 2, 3, 7, 64, 1000, 1 + rng.IntN(5000)}[rng.IntN(8)]
	if large {
		n = 300_000 + rng.IntN(1000) // over 1 MiB with 8-byte elements
	}
	value := func(r, i int) int64 { return int64(r*1_000_003 + i*17 + int(tag)) }
	block := func(r, to, n int) []byte {
		b := make([]byte, 0, 8*n)
		for i := range n {
			b = binary.LittleEndian.AppendUint64(b, uint64(value(r, to*100_000+i)))
		}
		return b
	}
	uneven := make([]int, size)
	for r := range uneven {
		uneven[r] = 8 * (n + r) % 4096
		uneven[r] -= uneven[r] % 8
	}
	for r := range size {
		q := c.req
		var want []byte
		switch q.Kind {
		case collective.Barrier:
		case collective.Broadcast:
			q.Out = make([]byte, 8*n)
			if r == q.Root {
				copy(q.Out, block(r, 0, n))
			}
			want = block(q.Root, 0, n)
		case collective.AllReduce, collective.Reduce:
			q.Out = block(r, 0, n)
			want = block(r, 0, n)
			if q.Kind == collective.AllReduce || r == q.Root {
				sum := make([]int64, n)
				for p := range size {
					for i := range n {
						sum[i] += value(p, i)
					}
				}
				want = ints(sum...)
			}
		case collective.AllGather:
			q.In, q.Out = block(r, 0, n), make([]byte, 8*n*size)
			for p := range size {
				want = append(want, block(p, 0, n)...)
			}
		case collective.AllGatherV:
			q.OutCounts, q.In = uneven, block(r, 0, uneven[r]/8)
			for p := range size {
				want = append(want, block(p, 0, uneven[p]/8)...)
			}
			q.Out = make([]byte, len(want))
		case collective.Gather:
			counts := make([]int, size)
			for p := range counts {
				counts[p] = 8 * n
			}
			if n%2 == 1 {
				counts = uneven
				q.OutCounts, q.Uneven = counts, true
			}
			q.In = block(r, 0, counts[r]/8)
			if r == q.Root {
				for p := range size {
					want = append(want, block(p, 0, counts[p]/8)...)
				}
				q.Out = make([]byte, len(want))
			}
		case collective.Scatter:
			if r == q.Root {
				for p := range size {
					q.In = append(q.In, block(r, p, n)...)
				}
			}
			q.Out, want = make([]byte, 8*n), block(q.Root, r, n)
		case collective.ReduceScatter:
			for p := range size {
				q.In = append(q.In, block(r, p, n)...)
			}
			q.Out = make([]byte, 8*n)
			sum := make([]int64, n)
			for p := range size {
				for i := range n {
					sum[i] += value(p, r*100_000+i)
				}
			}
			want = ints(sum...)
		case collective.AllToAll:
			for p := range size {
				q.In = append(q.In, block(r, p, n+(r+p)%3)...)
				q.InCounts = append(q.InCounts, 8*(n+(r+p)%3))
				q.OutCounts = append(q.OutCounts, 8*(n+(r+p)%3))
				want = append(want, block(p, r, n+(r+p)%3)...)
			}
			q.Out = make([]byte, len(want))
		}
		c.reqs, c.want = append(c.reqs, q), append(c.want, want)
	}
	return c
}

// runPlans runs random collectives on a world, the first few of them large, and compares with the reference. Several run
// at once, as in PyTorch.
func runPlans(t *testing.T, meshes []transport.Mesh, seed uint64, count, large int) {
	t.Helper()
	size := len(meshes)
	rng := rand.New(rand.NewPCG(seed, 1))
	calls := make([]call, count)
	for i := range calls {
		calls[i] = plan(rng, size, uint32(i), i < large)
	}
	each(t, size, func(r int) error {
		e := NewEngine(meshes[r])
		const inFlight = 3
		errs := make([]error, count)
		tokens := make(chan struct{}, inFlight)
		var wg sync.WaitGroup
		for i := range calls {
			tokens <- struct{}{}
			wg.Go(func() {
				errs[i] = e.Run(context.Background(), &calls[i].reqs[r])
				<-tokens
			})
		}
		wg.Wait()
		for i, c := range calls {
			if errs[i] != nil {
				return fmt.Errorf("collective %d, %s: %w", i, c.req.Kind, errs[i])
			}
			if !bytes.Equal(c.reqs[r].Out, c.want[r]) {
				return fmt.Errorf("collective %d, %s of %d bytes, root %d: wrong result", i, c.req.Kind, len(c.want[r]), c.req.Root)
			}
		}
		return nil
	})
}

func asLinks(meshes []*Mesh) []transport.Mesh {
	out := make([]transport.Mesh, len(meshes))
	for i, m := range meshes {
		out[i] = m
	}
	return out
}

func TestCollectivesInMemory(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 4, 5, 7, 8, 16, 33, 64} {
		t.Run(fmt.Sprintf("ranks-%d", size), func(t *testing.T) {
			t.Parallel()
			w := memtransport.New(size)
			var meshes []transport.Mesh
			for r := range size {
				meshes = append(meshes, w.Mesh(r))
			}
			large := 0
			if size == 3 {
				large = 2
			}
			runPlans(t, meshes, uint64(size), max(6, 60/size), large)
		})
	}
}

func TestCollectivesOverSockets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		size   int
		change func(rank int, c *Config)
	}{
		{"A-2", 2, func(_ int, c *Config) { c.Generation = A }},
		{"A-4", 4, func(_ int, c *Config) { c.Generation = A }},
		{"B-3", 3, func(_ int, c *Config) { c.Generation = B }},
		{"B-4", 4, func(_ int, c *Config) { c.Generation = B }},
		{"C-2", 2, nil},
		{"C-3", 3, nil},
		{"C-6", 6, nil},
		{"D-3", 3, func(_ int, c *Config) { c.Generation = D }},
		{"D-lazy-4", 4, func(_ int, c *Config) { c.Generation, c.Lazy = D, true }},
		{"D-some-lazy-4", 4, func(r int, c *Config) { c.Generation, c.Lazy = D, r%2 == 0 }},
		{"two-devices-3", 3, func(_ int, c *Config) { c.Devices = []string{"127.0.0.1", "127.0.0.2"} }},
		{"A-two-devices-3", 3, func(_ int, c *Config) { c.Generation, c.Devices = A, []string{"lo", "lo"} }},
		{"IPv6-3", 3, func(_ int, c *Config) { c.Devices = []string{"::1"} }},
		{"auto-3", 3, func(r int, c *Config) {
			if r != 1 {
				c.Generation = auto
			}
		}},
		{"auto-A-3", 3, func(r int, c *Config) {
			c.Generation = auto
			if r == 1 {
				c.Generation = A
			}
		}},
		{"auto-B-3", 3, func(r int, c *Config) {
			c.Generation = auto
			if r == 2 {
				c.Generation = B
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			meshes := connectWorld(t, c.size, c.change)
			large := 0
			switch c.name { // the bytes of large messages are the same in all generations
			case "A-2", "C-3", "D-lazy-4", "two-devices-3":
				large = 1
			}
			runPlans(t, asLinks(meshes), uint64(len(c.name)), 24, large)
		})
	}
}
