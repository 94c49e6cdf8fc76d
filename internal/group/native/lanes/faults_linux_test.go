// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// losses keeps what the meshes of a world report.
type losses struct {
	mu     sync.Mutex
	lost   map[int][]transport.Loss // by the rank that tells
	failed map[int]int
}

func (l *losses) hooks(c *nativetcp.Config) {
	rank := c.Rank
	c.OnLost = func(loss transport.Loss) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lost == nil {
			l.lost = map[int][]transport.Loss{}
		}
		l.lost[rank] = append(l.lost[rank], loss)
	}
	c.OnFail = func(error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.failed == nil {
			l.failed = map[int]int{}
		}
		l.failed[rank]++
	}
}

// busy runs large collectives on all ranks until they fail, and returns why each rank did.
func busy(t *testing.T, meshes []transport.Mesh, disturb func()) []error {
	t.Helper()
	errs := make([]error, len(meshes))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for r, m := range meshes {
		wg.Go(func() {
			e := native.NewEngine(m, native.Tuning{})
			for tag := uint32(0); errs[r] == nil; tag++ {
				q := request([]collective.Kind{collective.AllReduce, collective.Broadcast, collective.AllGather}[tag%3], tag, r,
					len(meshes), 1<<20+5, false)
				errs[r] = e.Run(ctx, &q)
			}
		})
	}
	wg.Go(disturb)
	wg.Wait()
	return errs
}

// soon lets some time pass, in which much or little happens.
func soon(rng *rand.Rand) { time.Sleep(time.Duration(rng.IntN(1<<rng.IntN(14))) * time.Microsecond) }

// TestEveryLaneCounts: whichever lane of a rank breaks, at whatever moment, all collectives end on all ranks. If all of
// them do, as with the process, the others name the rank; else it may have told them on a lane that is left whom it has
// lost itself.
func TestEveryLaneCounts(t *testing.T) {
	const n, victim = 3, 1
	const lanes = 3
	for lane := range lanes + 1 {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("lane=%d/seed=%d", lane, seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(lane)))
				var reported losses
				meshes := world(t, n, lanes, reported.hooks)
				errs := busy(t, meshes, func() {
					soon(rng)
					if lane == lanes {
						meshes[victim].(*mesh).Sever() //nolint:errcheck,forcetypeassert // a test
					} else {
						of(meshes[victim])[lane].Sever()
					}
				})
				for r, err := range errs {
					e, ok := errors.AsType[*cohort.Error](err)
					if !ok || e.Code != cohort.PeerLost || int(e.Rank) == r || lane == lanes && r != victim && e.Rank != victim {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				closeWorld(meshes)
				reported.mu.Lock()
				defer reported.mu.Unlock()
				for r := range n {
					seen := map[int]int{}
					for _, loss := range reported.lost[r] {
						seen[loss.Rank]++
						if seen[loss.Rank] > 1 {
							t.Errorf("rank %d was told twice of rank %d: %v", r, loss.Rank, loss)
						}
					}
					if reported.failed[r] > 1 {
						t.Errorf("rank %d failed %d times", r, reported.failed[r])
					}
				}
			})
		}
	}
}

// TestLostWithoutOperation: a lane that breaks while nothing runs is noticed as the first one is, and what is left of
// the group can exchange messages.
func TestLostWithoutOperation(t *testing.T) {
	for lane := range 3 {
		var reported losses
		meshes := world(t, 3, 3, reported.hooks)
		of(meshes[1])[lane].Sever()
		for _, r := range []int{0, 2} {
			op := &transport.Op{Peer: 1, Slot: 9, Buf: make([]byte, 8)}
			meshes[r].Recv(op)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := meshes[r].Wait(ctx, op)
			cancel()
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Rank != 1 {
				t.Errorf("lane %d, rank %d: %v", lane, r, err)
			}
		}
		out, in := &transport.Op{Peer: 2, Slot: 4, Buf: []byte("still here")}, &transport.Op{Peer: 0, Slot: 4, Buf: make([]byte, 10)}
		meshes[0].Send(out)
		meshes[2].Recv(in)
		if err := errors.Join(meshes[0].Wait(t.Context(), out), meshes[2].Wait(t.Context(), in)); err != nil ||
			string(in.Buf) != "still here" {
			t.Errorf("%q, %v", in.Buf, err)
		}
		closeWorld(meshes)
	}
}

// TestCloseAtAnyMoment: a rank that closes the mesh has left, for all others and on all lanes, and is not taken for
// dead; its own operations end.
func TestCloseAtAnyMoment(t *testing.T) {
	const n, victim = 3, 1
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 77))
			var reported losses
			meshes := world(t, n, 2+int(seed)%3, reported.hooks)
			errs := busy(t, meshes, func() {
				soon(rng)
				var twice sync.WaitGroup
				twice.Go(func() { _ = meshes[victim].Close() })
				_ = meshes[victim].Close()
				twice.Wait()
			})
			for r, err := range errs {
				e, ok := errors.AsType[*cohort.Error](err)
				switch {
				case r == victim && errors.Is(err, cohort.Closed):
				case r != victim && ok && e.Code == cohort.PeerLost && e.Rank == victim:
				default:
					t.Errorf("rank %d: %v", r, err)
				}
			}
			op := &transport.Op{Peer: 0, Slot: nativewire.CollectiveSlot(1), Buf: make([]byte, 1<<20)}
			meshes[victim].Send(op)
			if err := meshes[victim].Wait(t.Context(), op); !errors.Is(err, cohort.Closed) {
				t.Errorf("a send after Close: %v", err)
			}
			reported.mu.Lock()
			defer reported.mu.Unlock()
			for r, list := range reported.lost {
				for _, loss := range list {
					if loss.How != transport.Left {
						t.Errorf("rank %d was told %v", r, loss)
					}
				}
			}
		})
	}
}

// TestPostAfterTheEnd: parts that are posted when the lanes have failed or are closed are complete, and no wait for them hangs.
func TestPostAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(m transport.Mesh){
		"fail":  func(m transport.Mesh) { m.Fail(cohort.New("test", cohort.Aborted, "enough")) },
		"close": func(m transport.Mesh) { _ = m.Close() },
	} {
		meshes := world(t, 2, 3, nil)
		m := meshes[0].(*mesh) //nolint:errcheck,forcetypeassert // a test
		slot := nativewire.CollectiveSlot(3)
		m.Begin(slot, nativewire.Call{Kind: collective.AllReduce, Bytes: 4 << 20})
		before := &transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, 1<<20)}
		m.Recv(before)
		end(m)
		after := &transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, 1<<20)}
		m.Send(after)
		for _, op := range []*transport.Op{before, after} {
			if err := m.Wait(t.Context(), op); !op.Divided() || !errors.Is(err, cohort.Aborted) && !errors.Is(err, cohort.Closed) {
				t.Errorf("%s: divided %v, %v", name, op.Divided(), err)
			}
		}
		m.End(slot)
		closeWorld(meshes)
	}
}

// TestFailReachesAll: a rank that fails the mesh ends what all ranks do on all lanes, and they learn why.
func TestFailReachesAll(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var reported losses
		meshes := world(t, 3, 3, reported.hooks)
		why := &cohort.Error{Op: "test", Code: cohort.Aborted, Rank: 2, Detail: "had enough"}
		for r, err := range busy(t, meshes, func() {
			soon(rng)
			meshes[0].Fail(why)
		}) {
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.Aborted || e.Rank != 2 {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		closeWorld(meshes)
	}
}

// TestMismatch: ranks that call different things, or one thing with different sizes, learn of it, whether their messages are cut or not.
func TestMismatch(t *testing.T) {
	large, small := leastSplit*4, leastSplit/4
	for name, c := range map[string]func(r int) collective.Request{
		"sizes": func(r int) collective.Request { return request(collective.AllReduce, 0, r, 2, large+r*large, false) },
		"large or small": func(r int) collective.Request {
			return request(collective.Broadcast, 0, r, 2, []int{large, small}[r], false)
		},
		"small or large": func(r int) collective.Request {
			return request(collective.Broadcast, 0, r, 2, []int{small, large}[r], false)
		},
		"kinds": func(r int) collective.Request {
			return request([]collective.Kind{collective.AllReduce, collective.AllGather}[r], 0, r, 2, large, false)
		},
		"uneven, sender has more": func(r int) collective.Request {
			q := request(collective.Gather, 0, r, 2, large, true)
			if r == 1 {
				q.In = make([]byte, 2*large)
			}
			return q
		},
		"uneven, sender has less": func(r int) collective.Request {
			q := request(collective.Gather, 0, r, 2, large, true)
			if r == 1 {
				q.In = q.In[:leastSplit/2]
			}
			return q
		},
		"uneven, sender has much more": func(r int) collective.Request {
			q := request(collective.Gather, 0, r, 2, leastSplit/2, true)
			if r == 1 {
				q.In = make([]byte, large)
			}
			return q
		},
	} {
		t.Run(name, func(t *testing.T) {
			meshes := world(t, 2, 3, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for r, m := range meshes {
				wg.Go(func() {
					q := c(r)
					err := native.NewEngine(m, native.Tuning{}).Run(ctx, &q)
					if err == nil { // its part was done before the other rank noticed
						q = request(collective.Barrier, 1, r, 2, 0, false)
						err = native.NewEngine(m, native.Tuning{}).Run(ctx, &q)
					}
					if cohort.CodeOf(err) != cohort.Mismatch {
						t.Errorf("rank %d: %v", r, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestIdleLanesLive: no peer is declared dead on a lane that is idle for long.
func TestIdleLanesLive(t *testing.T) {
	var reported losses
	meshes := world(t, 2, 3, func(c *nativetcp.Config) {
		reported.hooks(c)
		c.Heartbeat = time.Second
	})
	time.Sleep(2500 * time.Millisecond)
	reported.mu.Lock()
	defer reported.mu.Unlock()
	if len(reported.lost)+len(reported.failed) > 0 {
		t.Errorf("lost %v, failed %v", reported.lost, reported.failed)
	}
	for r, m := range meshes {
		for i, lane := range of(m) {
			if err := alive(lane, 1-r); err != nil {
				t.Errorf("rank %d, lane %d: %v", r, i, err)
			}
		}
	}
}

// alive returns why nothing can be sent to a rank on a lane.
func alive(lane *nativetcp.Mesh, peer int) error {
	op := &transport.Op{Peer: peer, Slot: 3, Buf: []byte("here")}
	lane.Send(op)
	return lane.Wait(context.Background(), op)
}

// TestSilentLane: a network that drops what one connection sends, without a word, is noticed although the rank can be
// heard on the first lane.
func TestSilentLane(t *testing.T) {
	t.Parallel()
	list, peers := listeners(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var reported losses
	config := func(rank int) nativetcp.Config {
		c := nativetcp.Config{
			Rank: rank, Size: 2, Group: [16]byte{7}, Listener: list[rank], Peers: peers, Shared: true, Lanes: 2,
			Heartbeat: time.Second,
		}
		reported.hooks(&c)
		return c
	}
	var quiet sync.WaitGroup
	over := make(chan struct{})
	quiet.Go(func() { // rank 1: its second lane says hello and nothing else
		cfg := config(1)
		first, err := nativetcp.Connect(ctx, cfg)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = first.Close() }()
		ports, err := exchange(ctx, first, []byte{0, 1})
		if err != nil {
			t.Error(err)
			return
		}
		second, err := net.Dial("tcp", (&bond{cfg: cfg}).peers(ports, 0)[0])
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = second.Close() }()
		hello := nativewire.Hello{Version: nativewire.Version, Group: lane(cfg.Group, 1), From: 1, Size: 2, Window: 1 << 16, Lanes: 1}
		var buf [nativewire.HelloSize]byte
		hello.Put(buf[:])
		if _, err := second.Write(buf[:]); err != nil {
			t.Error(err)
		}
		<-over
	})
	defer quiet.Wait()
	defer close(over)
	m, err := Connect(ctx, config(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	q := request(collective.Broadcast, 0, 0, 2, 1<<20, false)
	q.Root = 1
	err = native.NewEngine(m, native.Tuning{}).Run(ctx, &q)
	if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Rank != 1 {
		t.Errorf("%v", err)
	}
	_ = m.Close() // what is told is told by then
	reported.mu.Lock()
	defer reported.mu.Unlock()
	if lost := reported.lost[0]; len(lost) != 1 || lost[0].Rank != 1 {
		t.Errorf("lost %v", lost)
	}
}
