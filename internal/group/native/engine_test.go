// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/group/transport/memtransport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpWorld connects a world over loopback.
func tcpWorld(tb testing.TB, size int, change func(*nativetcp.Config)) []transport.Mesh {
	tb.Helper()
	listeners, peers := make([]net.Listener, size), make([]string, size)
	for r := range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		listeners[r], peers[r] = l, l.Addr().String()
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	meshes, errs := make([]transport.Mesh, size), make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			cfg := nativetcp.Config{Rank: r, Size: size, Group: [16]byte{7}, Listener: listeners[r], Peers: peers, Shared: true}
			if change != nil {
				change(&cfg)
			}
			m, err := nativetcp.Connect(ctx, cfg)
			if err != nil {
				errs[r] = err
				return
			}
			meshes[r] = m
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
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

func memWorld(size int) []transport.Mesh {
	w := memtransport.New(size)
	meshes := make([]transport.Mesh, size)
	for r := range meshes {
		meshes[r] = w.Mesh(r)
	}
	return meshes
}

// plan is one collective: what each rank gives and what it must get.
type plan struct {
	requests []collective.Request
	want     [][]byte
}

// appendElement adds a small whole number as an element of dt, so that every order of a sum gives the same bits.
func appendElement(b []byte, dt tensor.DType, v int) []byte {
	switch dt {
	case tensor.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	case tensor.Int64:
		return binary.LittleEndian.AppendUint64(b, uint64(int64(v)))
	case tensor.Int16:
		return binary.LittleEndian.AppendUint16(b, uint16(int16(v)))
	default:
		return append(b, byte(v))
	}
}

func block(dt tensor.DType, n int, value func(i int) int) []byte {
	b := make([]byte, 0, n*dt.Size())
	for i := range n {
		b = appendElement(b, dt, value(i))
	}
	return b
}

func fold(op reduce.Op, n int, value func(rank int) int) int {
	acc := value(0)
	for r := 1; r < n; r++ {
		v := value(r)
		switch op {
		case reduce.Max:
			acc = max(acc, v)
		case reduce.Min:
			acc = min(acc, v)
		default:
			acc += v
		}
	}
	return acc
}

func makePlan(rng *rand.Rand, n int, tag uint32) plan {
	kind := collective.Kind(rng.IntN(int(collective.Barrier) + 1))
	root := rng.IntN(n)
	dt := []tensor.DType{tensor.Float32, tensor.Int64, tensor.Int16, tensor.Uint8}[rng.IntN(4)]
	op := []reduce.Op{reduce.Sum, reduce.Max, reduce.Min}[rng.IntN(3)]
	count := []int{0, 1, 2, 3, n, 17, 1000, 3 + rng.IntN(9000), 20000}[rng.IntN(9)]
	val := func(rank, at int) int { return (rank*7 + at*3 + int(tag)) % (120 / n) } // sums stay below 128
	var p plan
	counts := make([]int, n)
	for r := range counts {
		counts[r] = (count + r*13) % 2000 * dt.Size()
	}
	even := rng.IntN(2) == 0
	for me := range n {
		q := collective.Request{Kind: kind, Tag: tag, Root: root, DType: dt, Op: op}
		var want []byte
		join := func(n int, each func(i int) []byte) []byte {
			var b []byte
			for i := range n {
				b = append(b, each(i)...)
			}
			return b
		}
		reduced := func(at int) int { return fold(op, n, func(r int) int { return val(r, at) }) }
		switch kind {
		case collective.AllReduce, collective.Reduce:
			q.Out = block(dt, count, func(i int) int { return val(me, i) })
			want = bytes.Clone(q.Out)
			if kind == collective.AllReduce || me == root {
				want = block(dt, count, reduced)
			}
		case collective.Broadcast:
			q.Out = block(dt, count, func(i int) int { return val(me, i) })
			want = block(dt, count, func(i int) int { return val(root, i) })
		case collective.AllGather:
			q.In = block(dt, count, func(i int) int { return val(me, i) })
			want = join(n, func(r int) []byte { return block(dt, count, func(i int) int { return val(r, i) }) })
			q.Out = make([]byte, len(want))
		case collective.AllGatherV:
			q.OutCounts = counts
			q.In = block(dt, counts[me]/dt.Size(), func(i int) int { return val(me, i) })
			want = join(n, func(r int) []byte { return block(dt, counts[r]/dt.Size(), func(i int) int { return val(r, i) }) })
			q.Out = make([]byte, len(want))
		case collective.Gather:
			size := func(r int) int {
				if even {
					return count
				}
				return counts[r] / dt.Size()
			}
			q.Uneven = !even
			q.In = block(dt, size(me), func(i int) int { return val(me, i) })
			if me == root {
				want = join(n, func(r int) []byte { return block(dt, size(r), func(i int) int { return val(r, i) }) })
				q.Out = make([]byte, len(want))
				if !even {
					q.OutCounts = counts
				}
			}
		case collective.Scatter:
			size := func(r int) int {
				if even {
					return count
				}
				return counts[r] / dt.Size()
			}
			q.Uneven = !even
			if me == root {
				q.In = join(n, func(r int) []byte { return block(dt, size(r), func(i int) int { return val(r, i) }) })
				if !even {
					q.InCounts = counts
				}
			}
			q.Out = make([]byte, size(me)*dt.Size())
			want = block(dt, size(me), func(i int) int { return val(me, i) })
		case collective.ReduceScatter:
			size := func(r int) int {
				if even {
					return count
				}
				return counts[r] / dt.Size()
			}
			q.In = join(n, func(r int) []byte { return block(dt, size(r), func(i int) int { return val(me, i+r) }) })
			if !even {
				q.InCounts = counts
			}
			q.Out = make([]byte, size(me)*dt.Size())
			want = block(dt, size(me), func(i int) int { return reduced(i + me) })
		case collective.AllToAll:
			size := func(from, to int) int {
				if even {
					return count
				}
				return (count + from*5 + to*11) % 1500
			}
			q.In = join(n, func(to int) []byte { return block(dt, size(me, to), func(i int) int { return val(me, i+to) }) })
			want = join(n, func(from int) []byte { return block(dt, size(from, me), func(i int) int { return val(from, i+me) }) })
			q.Out = make([]byte, len(want))
			if !even {
				for r := range n {
					q.InCounts = append(q.InCounts, size(me, r)*dt.Size())
					q.OutCounts = append(q.OutCounts, size(r, me)*dt.Size())
				}
			}
		case collective.Barrier:
		}
		p.requests, p.want = append(p.requests, q), append(p.want, want)
	}
	return p
}

func runPlans(t *testing.T, meshes []transport.Mesh, tuning native.Tuning, seed uint64, count int) {
	t.Helper()
	n := len(meshes)
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	plans := make([]plan, count)
	for i := range plans {
		plans[i] = makePlan(rng, n, uint32(i))
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			e := native.NewEngine(meshes[r], tuning)
			for i, p := range plans {
				q := p.requests[r]
				if err := interrupting(e, &q, seed+uint64(i+r)); err != nil {
					errs[r] = fmt.Errorf("rank %d, plan %d, %v: %w", r, i, q.Kind, err)
					return
				}
				if !bytes.Equal(q.Out, p.want[r]) {
					errs[r] = fmt.Errorf("rank %d, plan %d, %v of %v, %d bytes, root %d: wrong result", r, i, q.Kind, q.DType,
						len(q.Out), q.Root)
					meshes[r].Fail(errs[r])
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// interrupting runs a request and, for some seeds, leaves it several times in the middle.
func interrupting(e *native.Engine, q *collective.Request, seed uint64) error {
	return testkit.Interrupt[*collective.Interrupted](func(ctx context.Context) error { return e.Run(ctx, q) }, seed, 300*time.Microsecond)
}

// tunings make every algorithm run at every size.
var tunings = []native.Tuning{
	{},
	{Small: 1, HalveTo: 1, Together: 1, Tree: 1, Rise: 1, Relay: 1, Doubling: 1, Segment: 64, Depth: 1},
	{Small: 1, HalveTo: 1, Together: 1, Tree: 1, Rise: 1, Segment: 1000, Depth: 4, Pass: 1},
	{Small: 1, HalveTo: 1, Together: 1, Rise: 1, Doubling: 1, Segment: 512, Depth: 3, RingFrom: 2},
	{Small: 1 << 20, HalveTo: 1, Relay: 1 << 24, Doubling: 1 << 24},
	{HalveFrom: 1, HalveTo: 1 << 30, Together: 1 << 30, Tree: 1, SpreadFrom: 2, Segment: 512},
}

func TestCollectivesInMemory(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 8, 13} {
		for i, tuning := range tunings {
			t.Run(fmt.Sprintf("ranks=%d/tuning=%d", n, i), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runPlans(t, memWorld(n), tuning, uint64(i), 15) })
			})
		}
	}
}

func TestCollectivesOf64Ranks(t *testing.T) {
	for i, tuning := range tunings[:2] {
		synctest.Test(t, func(t *testing.T) { runPlans(t, memWorld(64), tuning, uint64(i), 8) })
	}
}

// A broadcast that is dealt out and collected reaches all ranks from every root, also with fewer elements than ranks.
func TestSpread(t *testing.T) {
	for _, n := range []int{3, 4, 5, 8, 13, 16, 31} {
		for _, size := range []int{2, n - 1, n, 4097} {
			synctest.Test(t, func(t *testing.T) {
				meshes := memWorld(n)
				want := block(tensor.Uint8, size, func(i int) int { return i % 97 })
				var wg sync.WaitGroup
				for r := range n {
					wg.Go(func() {
						e := native.NewEngine(meshes[r], native.Tuning{Tree: 1, SpreadFrom: 2, Segment: 8})
						for root := range n {
							q := &collective.Request{
								Kind: collective.Broadcast, Tag: uint32(root), DType: tensor.Uint8,
								Root: root, Out: make([]byte, size),
							}
							if r == root {
								copy(q.Out, want)
							}
							if err := interrupting(e, q, uint64(size+r+root)); err != nil || !bytes.Equal(q.Out, want) {
								t.Errorf("%d bytes from rank %d of %d: rank %d got %v: %v", size, root, n, r, q.Out[:min(size, 20)], err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// The average of what ranks give is right whichever of them divides, and for those that stay out of an exchange too.
func TestAverage(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 6, 7, 12, 16} {
		for i, tuning := range tunings {
			synctest.Test(t, func(t *testing.T) {
				meshes := memWorld(n)
				var wg sync.WaitGroup
				for r := range n {
					wg.Go(func() {
						e := native.NewEngine(meshes[r], tuning)
						for tag, kind := range []collective.Kind{collective.AllReduce, collective.ReduceScatter, collective.Reduce} {
							const count = 40
							in := block(tensor.Float32, n*count, func(i int) int { return 2*r + i%50 })
							from, length := 0, n*count
							q := &collective.Request{Kind: kind, Tag: uint32(tag), DType: tensor.Float32, Op: reduce.Avg, Out: in}
							if kind == collective.ReduceScatter {
								q.In, q.Out = in, make([]byte, 4*count)
								from, length = r*count, count
							}
							// The mean of 2r is n-1.
							want := block(tensor.Float32, length, func(i int) int { return n - 1 + (from+i)%50 })
							if err := interrupting(e, q, uint64(n+r+i)); err != nil ||
								(kind != collective.Reduce || r == 0) && !bytes.Equal(q.Out, want) {
								t.Errorf("%v, rank %d of %d, tuning %d: wrong average: %v", kind, r, n, i, err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

func TestCollectivesOverTCP(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 9} {
		for i, tuning := range tunings {
			t.Run(fmt.Sprintf("ranks=%d/tuning=%d", n, i), func(t *testing.T) {
				runPlans(t, tcpWorld(t, n, nil), tuning, uint64(i)+100, 12)
			})
		}
	}
}

// TestCountsOnSomeRanks: some ranks say how their blocks are split and others do not, as PyTorch allows: what is sent and expected is the
// same.
func TestCountsOnSomeRanks(t *testing.T) {
	const n = 16
	for _, bytes := range []int{4, 512} {
		meshes := tcpWorld(t, n, nil)
		var wg sync.WaitGroup
		for r := range n {
			wg.Go(func() {
				q := &collective.Request{
					Kind: collective.AllToAll, DType: tensor.Uint8, In: make([]byte, n*bytes),
					Out: make([]byte, n*bytes),
				}
				for i := range q.In {
					q.In[i] = byte(r)
				}
				if r == 5 {
					q.InCounts, q.OutCounts = slices.Repeat([]int{bytes}, n), slices.Repeat([]int{bytes}, n)
				}
				if err := native.NewEngine(meshes[r], native.Tuning{}).Run(t.Context(), q); err != nil {
					t.Errorf("blocks of %d B, rank %d: %v", bytes, r, err)
					return
				}
				for i, b := range q.Out {
					if int(b) != i/bytes {
						t.Errorf("blocks of %d B: rank %d got %d from rank %d", bytes, r, b, i/bytes)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

func TestLargeOverTCP(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		meshes := tcpWorld(t, n, nil)
		var wg sync.WaitGroup
		for r, m := range meshes {
			wg.Go(func() {
				e := native.NewEngine(m, native.Tuning{})
				for tag := range uint32(3) {
					data := block(tensor.Int16, 300_001, func(int) int { return r + 1 })
					if err := e.Run(context.Background(),
						&collective.Request{Kind: collective.AllReduce, Tag: 2 * tag, DType: tensor.Int16, Out: data}); err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(data, block(tensor.Int16, 300_001, func(int) int { return n * (n + 1) / 2 })) {
						t.Errorf("ranks %d: wrong sum", n)
					}
					if err := e.Run(context.Background(),
						&collective.Request{
							Kind: collective.Broadcast, Tag: 2*tag + 1, DType: tensor.Int16, Out: data,
							Root: 1,
						}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}
