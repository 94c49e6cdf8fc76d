// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloopresence"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// noticed bounds how long a rank may take to learn of a death: five times what is promised.
const noticed = 5 * time.Second

// sever ends all connections of a rank as the death of its process would: without a notice.
func sever(m *Mesh) {
	for _, d := range m.devices {
		d.mu.Lock()
		for _, p := range d.pairs {
			if p != nil {
				p.native = false // a dead process sends nothing
			}
		}
		for _, p := range d.pairs {
			if p != nil && p.conn != nil {
				_ = p.conn.Close()
			}
		}
		d.mu.Unlock()
	}
}

// TestDeathOfAnyRankIsNamedByAll: five ranks, of which some send no more than PyTorch does; one is late, another dies, and those
// like PyTorch end a moment after it. All others name the dead one.
func TestDeathOfAnyRankIsNamedByAll(t *testing.T) {
	t.Parallel()
	const size, late = 5, 0
	kinds := []collective.Kind{
		collective.AllReduce, collective.Barrier, collective.AllGather, collective.AllToAll,
		collective.ReduceScatter,
	}
	for plain := range 4 {
		for victim := 1; victim < size; victim++ {
			t.Run(fmt.Sprintf("%d like PyTorch, rank %d dies", plain, victim), func(t *testing.T) {
				t.Parallel()
				like := func(rank int) bool { return (rank+size-victim)%size < plain }
				meshes := connectWorld(t, size, func(rank int, c *Config) { c.plain = like(rank) })
				kind := kinds[(plain+victim)%len(kinds)]
				errs := make([]error, size)
				var wg sync.WaitGroup
				var entered sync.WaitGroup
				for r := range size {
					if r == late || like(r) {
						continue
					}
					entered.Add(1)
					wg.Go(func() {
						entered.Done()
						q := collective.Request{Kind: kind, DType: tensor.Float32, In: make([]byte, 4*size), Out: make([]byte, 4*size)}
						if kind == collective.AllGather {
							q.In = make([]byte, 4)
						}
						if kind == collective.ReduceScatter {
							q.Out = make([]byte, 4)
						}
						errs[r] = NewEngine(meshes[r]).Run(context.Background(), &q)
					})
				}
				entered.Wait()
				sever(meshes[victim])
				start := time.Now()
				wg.Go(func() {
					// A PyTorch rank that raises an error takes a while to end.
					for r, m := range meshes {
						for r != victim && !like(r) && !m.watch.recorded(victim) && m.Err() == nil && time.Since(start) < noticed {
							time.Sleep(time.Millisecond)
						}
					}
					time.Sleep(30 * time.Millisecond) // longer than the ticks by which the kernel reports the age of a connection
					for r, m := range meshes {
						if like(r) && r != late {
							sever(m)
						}
					}
				})
				wg.Wait()
				if took := time.Since(start); took > noticed {
					t.Errorf("it took %v", took)
				}
				for r, err := range errs {
					if r == late || r == victim || like(r) {
						continue
					}
					lostRank(t, err, victim)
				}
			})
		}
	}
}

// TestBlameWaitsForWhoEnded: between the end of a connection and the machine's knowledge of it a reader may be suspended for
// long. Until then no other rank is blamed.
func TestBlameWaitsForWhoEnded(t *testing.T) {
	t.Parallel()
	m := connectWorld(t, 3, nil)[0]
	p := m.devices[0].pairs[2]
	dead := func(dead bool) {
		p.d.mu.Lock()
		defer p.d.mu.Unlock()
		p.dead = dead
	}
	if m.unread() {
		t.Error("a connection that is there counts as ended")
	}
	dead(true)        // as lose does
	defer dead(false) // so that it is closed
	if !m.unread() {
		t.Error("the machine does not know that rank 2 is gone, and Blame does not wait for it")
	}
	for range 3 { // messages that failed, say
		_ = m.Blame(&cohort.Error{Code: cohort.PeerLost, Rank: 1})
		polls := <-m.watch.polls
		if m.watch.polls <- polls; polls != maxPolls {
			t.Errorf("%d polls in vain, want %d in all", polls, maxPolls)
		}
	}
	m.watch.ended(&gloopresence.End{Rank: 2, Seen: m.watch.now(), Err: errors.New("rank 2 is gone")})
	if m.unread() {
		t.Error("Blame waits for what the machine knows")
	}
	_ = m.Blame(&cohort.Error{Code: cohort.PeerLost, Rank: 1})
	if polls := <-m.watch.polls; polls != 0 {
		t.Errorf("after %d polls no reader is late, and they still count", polls)
	}
	m.watch.polls <- 0
}

// TestDeathWhileIdle: ranks that run nothing are notified, and the next collective fails at once.
func TestDeathWhileIdle(t *testing.T) {
	for _, plain := range []bool{false, true} {
		losses := make(chan transport.Loss, 16)
		meshes := connectWorld(t, 4, func(rank int, c *Config) {
			c.plain = plain && rank == 2
			if rank == 0 {
				c.OnLost = func(l transport.Loss) { losses <- l }
			}
		})
		sever(meshes[2])
		select {
		case l := <-losses:
			if want := map[bool]transport.How{false: transport.Died, true: transport.Ended}[plain]; l.Rank != 2 || l.How != want {
				t.Errorf("plain %v: %+v", plain, l)
			}
		case <-time.After(noticed):
			t.Fatal("no loss was reported")
		}
		start := time.Now()
		err := NewEngine(meshes[0]).Run(context.Background(), &collective.Request{Kind: collective.Barrier, Timeout: noticed})
		lostRank(t, err, 2)
		if took := time.Since(start); took > noticed/2 {
			t.Errorf("the next collective took %v to fail", took)
		}
	}
}

// TestMessagesDoNotHideADeath: a rank that sends no more than PyTorch does dies, and a late one sends messages all the time. The
// collective that needs the dead rank ends all the same.
func TestMessagesDoNotHideADeath(t *testing.T) {
	t.Parallel()
	const size, late = 5, 4 // in a barrier rank 0 receives from rank 4 first
	meshes := connectWorld(t, size, func(rank int, c *Config) { c.plain = rank == 2 })
	ended := make(chan error, 1)
	go func() {
		ended <- NewEngine(meshes[0]).Run(context.Background(), &collective.Request{Kind: collective.Barrier, Timeout: 4 * noticed})
	}()
	sever(meshes[2])
	limit := time.After(noticed)
	for slot := uint64(1); ; slot++ {
		meshes[0].Recv(&transport.Op{Peer: late, Slot: slot, Buf: make([]byte, 4)})
		meshes[late].Send(&transport.Op{Peer: 0, Slot: slot, Buf: []byte("here")})
		select {
		case err := <-ended:
			lostRank(t, err, 2)
			return
		case <-limit:
			t.Fatal("messages hide that rank 2 is dead")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestEarlyLeaverIsNoDeath: the root of a broadcast, and a rank that has seen the end of an all-reduce, may leave while others
// are late or slow.
func TestEarlyLeaverIsNoDeath(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("like PyTorch: %v", plain), func(t *testing.T) {
			t.Parallel()
			const size = 4
			meshes := connectWorld(t, size, func(_ int, c *Config) { c.plain = plain })
			errs := make([]error, size)
			left := make(chan struct{})
			var wg sync.WaitGroup
			for r := range size {
				wg.Go(func() {
					q := collective.Request{Kind: collective.Broadcast, DType: tensor.Uint8, Out: []byte{byte(r + 1)}}
					if r == 2 { // rank 0 sends to 1 and 2, rank 1 to 3: it need not wait for 3
						<-time.After(time.Millisecond)
					}
					if r == 1 || r == 3 {
						<-left // rank 0 has the receive of rank 1 only through its own send
					}
					errs[r] = NewEngine(meshes[r]).Run(within(t, noticed), &q)
					if errs[r] == nil && q.Out[0] != 1 {
						errs[r] = errors.New("wrong data")
					}
					if r == 2 {
						_ = meshes[2].Close() // done, while 1 and 3 have not entered
						close(left)
					}
				})
			}
			wg.Wait()
			for r, err := range errs {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// TestReasonTravels: the reason of a Go rank that gives up is the error of the others.
func TestReasonTravels(t *testing.T) {
	meshes := connectWorld(t, 3, nil)
	done := make(chan error, 1)
	go func() {
		done <- NewEngine(meshes[1]).Run(context.Background(), &collective.Request{Kind: collective.Barrier})
	}()
	meshes[0].Fail(cohort.New("test", cohort.Mismatch, "ranks differ"))
	select {
	case err := <-done:
		if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "ranks differ (reported by rank 0)") {
			t.Error(err)
		}
	case <-time.After(noticed):
		t.Fatal("rank 1 is not notified")
	}
}

// TestLateConsequenceOfADeath: a collective waits for rank 2, which went long ago and is still in doubt, because this process did not get
// to run. Then the connection of rank 1 ends too. Rank 2 is to blame.
func TestLateConsequenceOfADeath(t *testing.T) {
	t.Parallel()
	meshes := connectWorld(t, 3, func(_ int, c *Config) { c.plain = true })
	ended := make(chan error, 1)
	go func() {
		ended <- NewEngine(meshes[0]).Run(within(t, 2*noticed), &collective.Request{Kind: collective.Barrier})
	}()
	for ctx := within(t, noticed); len(meshes[0].Awaited()) == 0; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the barrier does not begin")
		}
	}
	gone := &cohort.Error{Op: "test", Code: cohort.PeerLost, Rank: 2, Peer: "here", Detail: "it went long ago"}
	meshes[0].watch.ended(&gloopresence.End{Rank: 2, Seen: meshes[0].watch.now() - time.Hour, Err: gone})
	reset(meshes[1], 0)
	lostRank(t, <-ended, 2)
}

// TestCloseReasonTravels: rank 1 has seen the death of rank 2 and closes the group. Rank 0, which has not seen it, names rank 2 for a
// collective and a message.
func TestCloseReasonTravels(t *testing.T) {
	t.Parallel()
	meshes := connectWorld(t, 3, nil)
	message := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
	meshes[0].Recv(message)
	_ = meshes[1].devices[0].pairs[2].conn.Close()
	awaitGone(t, meshes[1], 2)
	_ = meshes[1].Close()
	lostRank(t, meshes[0].Blame(meshes[0].Wait(within(t, noticed), message)), 2)
	lostRank(t, NewEngine(meshes[0]).Run(within(t, noticed), &collective.Request{Kind: collective.Barrier}), 2)
}

// TestCloseNoticeWithoutAReason: a close notice may not blame the rank that sends it, the one that receives it, or
// none. It is a goodbye then.
func TestCloseNoticeWithoutAReason(t *testing.T) {
	t.Parallel()
	for blamed, want := range map[int]cohort.Rank{-1: 1, 0: 1, 1: 1, 2: 2} {
		meshes := connectWorld(t, 3, nil)
		message := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
		meshes[0].Recv(message)
		meshes[1].devices[0].pairs[0].giveUp(&gloowire.Notice{Code: cohort.PeerLost, Rank: blamed}, errClosed())
		for _, err := range []error{
			meshes[0].Blame(meshes[0].Wait(within(t, noticed), message)),
			NewEngine(meshes[0]).Run(within(t, noticed), &collective.Request{Kind: collective.Barrier}),
		} {
			lostRank(t, err, int(want))
			said := strings.Contains(err.Error(), closeReasonDetail)
			if said != (want == 2) {
				t.Errorf("rank 1 blames %d: %v", blamed, err)
			}
		}
	}
}

// TestNoRankNamesItself: ranks 1 and 2 lose each other while both live. Rank 1 reports that to rank 0 when it closes
// the group, and rank 0 to rank 2, which names the loss that it saw.
func TestNoRankNamesItself(t *testing.T) {
	t.Parallel()
	meshes := connectWorld(t, 3, nil)
	from1, from0 := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}, &transport.Op{Peer: 0, Slot: 1, Buf: make([]byte, 1)}
	meshes[0].Recv(from1)
	meshes[2].Recv(from0)
	_ = meshes[1].devices[0].pairs[2].conn.Close()
	awaitGone(t, meshes[1], 2)
	awaitGone(t, meshes[2], 1)
	_ = meshes[1].Close()
	lostRank(t, meshes[0].Blame(meshes[0].Wait(within(t, noticed), from1)), 2)
	_ = meshes[0].Close()
	if err := meshes[2].Wait(within(t, noticed), from0); err == nil {
		t.Fatal("rank 2 is not notified that rank 0 left")
	}
	lostRank(t, NewEngine(meshes[2]).Run(within(t, noticed), &collective.Request{Kind: collective.Barrier}), 1)
}
