// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/tensor"
)

// valueOf is what a rank has for another in an operation: n bytes of which each four are a number.
func valueOf(tag uint32, from, to, n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 4 {
		binary.LittleEndian.PutUint32(b[i:], tag*64+uint32(from*8+to)+uint32(i)<<16)
	}
	return b
}

// rootedRequest makes an operation of a rank, and what its output has to be.
func rootedRequest(kind collective.Kind, tag uint32, rank, ranks, root, n int) (q *collective.Request, want []byte) {
	q = &collective.Request{Kind: kind, Tag: tag, Root: root, DType: tensor.Int32, Op: reduce.Max, Timeout: 20 * time.Second}
	every := func(of func(i int) []byte) (all []byte) {
		for i := range ranks {
			all = append(all, of(i)...)
		}
		return all
	}
	switch kind {
	case collective.Broadcast:
		q.Out, want = make([]byte, n), valueOf(tag, root, 0, n)
		if rank == root {
			copy(q.Out, want)
		}
	case collective.Reduce, collective.AllReduce:
		q.Out = valueOf(tag, rank, 0, n)
		if want = bytes.Clone(q.Out); rank == root || kind == collective.AllReduce {
			want = valueOf(tag, ranks-1, 0, n) // the largest
		}
	case collective.Gather:
		q.In = valueOf(tag, rank, 0, n)
		if rank == root {
			q.Out, want = make([]byte, n*ranks), every(func(i int) []byte { return valueOf(tag, i, 0, n) })
		}
	case collective.Scatter:
		q.Out, want = make([]byte, n), valueOf(tag, root, rank, n)
		if rank == root {
			q.In = every(func(i int) []byte { return valueOf(tag, root, i, n) })
		}
	default:
	}
	return q, want
}

// runRooted runs one and compares the output.
func runRooted(ctx context.Context, e *Engine, kind collective.Kind, tag uint32, root, n int) error {
	return checkRooted(e, kind, tag, root, n, func(q *collective.Request) error { return e.Run(ctx, q) })
}

// checkRooted is runRooted with a function that runs the request.
func checkRooted(e *Engine, kind collective.Kind, tag uint32, root, n int, run func(*collective.Request) error) error {
	q, want := rootedRequest(kind, tag, e.rank, e.size, root, n)
	if err := run(q); err != nil {
		return err
	}
	if !bytes.Equal(q.Out, want) {
		return fmt.Errorf("rank %d: %v %d of %d bytes from root %d: %x, want %x", e.rank, kind, tag, n, root, q.Out, want)
	}
	return nil
}

// anyAsleep reports whether a rank sleeps because it waits for a step of another.
func anyAsleep(e *Engine) bool {
	for _, steps := range e.steps.lines {
		for i := range steps {
			if atomic.LoadUint32(&steps[i].sleepers) != 0 {
				return true
			}
		}
	}
	return false
}

// TestRunningAhead: a rank that needs no other continues while the others have not arrived, until the room is used up;
// what it has shown is still there when they arrive.
func TestRunningAhead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind  collective.Kind
		ahead []int // the ranks that need no other, if 0 is the root
		bytes int
		least int // how far they must get
	}{
		"broadcast of a word":  {collective.Broadcast, []int{0}, 4, window - 1},
		"broadcast":            {collective.Broadcast, []int{0}, 400, sets},
		"scatter":              {collective.Scatter, []int{0}, 100, sets},
		"reduce of a word":     {collective.Reduce, []int{1, 2}, 8, window - 1},
		"reduce":               {collective.Reduce, []int{1, 2}, 400, sets},
		"gather of a word":     {collective.Gather, []int{1, 2}, 8, window - 1},
		"gather":               {collective.Gather, []int{1, 2}, 400, sets},
		"broadcast, too large": {collective.Broadcast, []int{0}, 600, 0},
		"scatter, too large":   {collective.Scatter, []int{0}, 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := world(t, 3, func(cfg *Config) { cfg.Slot = 512 })
			count := uint32(2 * window)
			stuck := make([]uint32, 3)
			pending := make([]*collective.Request, 3)
			for _, rank := range c.ahead {
				ctx, cancel := context.WithCancel(t.Context())
				var watch sync.WaitGroup
				watch.Go(func() { // until it cannot continue, or is done
					for ctx.Err() == nil && !anyAsleep(engines[rank]) {
						time.Sleep(time.Millisecond)
					}
					cancel()
				})
				for ; stuck[rank] < count; stuck[rank]++ {
					q, _ := rootedRequest(c.kind, stuck[rank], rank, 3, 0, c.bytes)
					err := engines[rank].Run(ctx, q)
					if errors.As(err, new(*collective.Interrupted)) {
						pending[rank] = q
						break
					}
					if err != nil {
						t.Error(err)
						break
					}
				}
				cancel()
				watch.Wait()
				if got := int(stuck[rank]); got < c.least || got > window || c.least == 0 && got > 0 {
					t.Errorf("rank %d got %d operations ahead, want %d to %d", rank, got, c.least, window)
				}
			}
			for _, err := range each(engines, func(e *Engine) error {
				tag := stuck[e.rank]
				if q := pending[e.rank]; q != nil {
					if err := e.Run(t.Context(), q); err != nil {
						return err
					}
					tag++
				}
				for ; tag < count; tag++ {
					if err := runRooted(t.Context(), e, c.kind, tag, 0, c.bytes); err != nil {
						return err
					}
				}
				return nil
			}) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// runInParts runs a request under contexts of which some end soon, as often as it takes.
func runInParts(ctx context.Context, e *Engine, q *collective.Request, choice *rand.Rand) error {
	for {
		part, cancel := ctx, context.CancelFunc(func() {})
		if choice.IntN(3) == 0 {
			part, cancel = context.WithTimeout(ctx, time.Duration(choice.IntN(200))*time.Microsecond)
		}
		err := e.Run(part, q)
		cancel()
		// which had not begun
		interrupted := errors.As(err, new(*collective.Interrupted)) ||
			err != nil && part.Err() != nil && errors.Is(err, context.DeadlineExceeded)
		if !interrupted || ctx.Err() != nil {
			return err
		}
	}
}

// TestDrift runs long sequences of operations with changing roots on ranks that pause and are interrupted as they like, over the
// wrap-around of the step counter.
func TestDrift(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			ranks := 2 + int(seed%4)
			engines := world(t, ranks, func(cfg *Config) { cfg.Slot, cfg.Area = 512, 4096 })
			near := ^uint32(0) - 300
			each(engines, func(e *Engine) error {
				e.steps.last, e.steps.all, e.steps.compared = near, near, near
				for i := range uint32(stepLines) {
					e.steps.lines[e.rank].at(near - i).step = near - i
				}
				for i := range e.cases.used {
					e.cases.used[i] = near
				}
				return nil
			})
			plan := rand.New(rand.NewPCG(seed, 1))
			kinds := []collective.Kind{
				collective.Broadcast, collective.Reduce, collective.Gather, collective.Scatter,
				collective.Broadcast, collective.AllReduce,
			}
			type step struct {
				kind    collective.Kind
				root, n int
			}
			steps := make([]step, 1200)
			for i := range steps {
				if i > 0 && plan.IntN(4) != 0 {
					steps[i] = steps[i-1] // several from one root
					continue
				}
				steps[i] = step{kinds[plan.IntN(len(kinds))], plan.IntN(ranks), []int{4, 8, 40, 400, 5000}[plan.IntN(5)]}
			}
			for _, err := range each(engines, func(e *Engine) error {
				pause := rand.New(rand.NewPCG(seed, uint64(2+e.rank)))
				for tag, s := range steps {
					if pause.IntN(40) == 0 {
						time.Sleep(time.Duration(pause.IntN(1000)) * time.Microsecond)
					}
					if err := checkRooted(e, s.kind, uint32(tag), s.root, s.n,
						func(q *collective.Request) error { return runInParts(t.Context(), e, q, pause) }); err != nil {
						return err
					}
				}
				return nil
			}) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// awaitGone returns when a rank has seen that another is lost.
func awaitGone(t *testing.T, e *Engine, rank int) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("rank %d sees that rank %d is lost", e.rank, rank), func() bool { return e.others.state(rank) != present })
}

// TestLossInAnOperationWithoutAWait: it fails because of a rank that has left, although it needs nothing of it.
func TestLossInAnOperationWithoutAWait(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	_ = engines[2].Close()
	awaitGone(t, engines[0], 2)
	err := runRooted(t.Context(), engines[0], collective.Broadcast, 1, 0, 4)
	if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Rank != 2 {
		t.Errorf("the root: %v", err)
	}
	if err := runRooted(t.Context(), engines[1], collective.Broadcast, 1, 0, 4); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("the other one: %v", err)
	}
}

// TestReasonOfARankThatLeft: a rank abandons the group because of another and leaves while a third checks which rank is
// lost. That one names the same rank.
func TestReasonOfARankThatLeft(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	_ = engines[2].Close()
	awaitGone(t, engines[0], 2)
	awaitGone(t, engines[1], 2)
	if err := runRooted(t.Context(), engines[1], collective.Broadcast, 1, 1, 4); !errors.Is(err, cohort.PeerLost) {
		t.Fatal(err)
	}
	_ = engines[1].Close()
	awaitGone(t, engines[0], 1)
	e := engines[0]
	for range 2 { // it had seen no reason when it began, and is ahead of both
		e.op = progress{request: &collective.Request{Kind: collective.Broadcast}}
		e.publish()
	}
	if lost, ok := errors.AsType[*cohort.Error](e.checkLost()); !ok || lost.Code != cohort.PeerLost || lost.Rank != 2 {
		t.Errorf("%v", lost)
	}
}

// TestAReceiverWaitsForTheRoot, and reports that, also if other ranks are late.
func TestAReceiverWaitsForTheRoot(t *testing.T) {
	t.Parallel()
	for _, kind := range []collective.Kind{collective.Broadcast, collective.Scatter} {
		engines := world(t, 3, nil)
		q, _ := rootedRequest(kind, 1, 1, 3, 0, 4)
		q.Timeout = 50 * time.Millisecond
		if err := engines[1].Run(t.Context(), q); !errors.Is(err, cohort.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "(waiting for ranks [0])") {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

// TestDeathAfterOnesPart: a rank that has sent its part may die, and the operation ends well on the others, however late they are. The
// next one does not.
func TestDeathAfterOnesPart(t *testing.T) {
	t.Parallel()
	for _, kind := range []collective.Kind{collective.Reduce, collective.Gather} {
		for name, rootFirst := range map[string]bool{"root waits": true, "root is last": false} {
			t.Run(kind.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				engines := world(t, 3, nil)
				root := make(chan error, 1)
				reduce := func() { root <- runRooted(t.Context(), engines[0], kind, 1, 0, 4) }
				if rootFirst {
					go reduce()
				}
				if err := runRooted(t.Context(), engines[1], kind, 1, 0, 4); err != nil {
					t.Fatal(err)
				}
				endConnections(engines[1])
				awaitGone(t, engines[0], 1)
				awaitGone(t, engines[2], 1)
				if rootFirst {
					awaitAsleep(t, engines[2])
				}
				if err := runRooted(t.Context(), engines[2], kind, 1, 0, 4); err != nil {
					t.Errorf("rank 2: %v", err)
				}
				if !rootFirst {
					go reduce()
				}
				if err := <-root; err != nil {
					t.Errorf("the root: %v", err)
				}
				for _, e := range []*Engine{engines[2], engines[0]} {
					err := runRooted(t.Context(), e, kind, 2, 0, 4)
					if lost, ok := errors.AsType[*cohort.Error](err); !ok || lost.Code != cohort.PeerLost || lost.Rank != 1 {
						t.Errorf("rank %d, the next operation: %v", e.rank, err)
					}
				}
			})
		}
	}
}

// endConnections is what the others see when a rank's process ends.
func endConnections(e *Engine) {
	for _, c := range e.others.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// awaitAsleep returns when another rank sleeps until e, which runs nothing, takes its next step.
func awaitAsleep(t *testing.T, e *Engine) {
	t.Helper()
	sleepers := &e.steps.lines[e.rank].at(e.steps.last + 1).sleepers
	testkit.Until(t, fmt.Sprintf("a rank waits for rank %d", e.rank), func() bool { return atomic.LoadUint32(sleepers) != 0 })
}

// TestWhatALeaverHasShown can still be read.
func TestWhatALeaverHasShown(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	for tag := range uint32(3) {
		if err := runRooted(t.Context(), engines[0], collective.Broadcast, tag, 0, 4); err != nil {
			t.Fatal(err)
		}
	}
	_ = engines[0].Close()
	awaitGone(t, engines[1], 0)
	for tag := range uint32(3) {
		if err := runRooted(t.Context(), engines[1], collective.Broadcast, tag, 0, 4); err != nil {
			t.Error(err)
		}
	}
	if err := runRooted(t.Context(), engines[1], collective.Broadcast, 3, 0, 4); !errors.Is(err, cohort.PeerLost) {
		t.Error(err)
	}
}

// TestLateMismatch: a difference that no rank sees in the operation itself is found before it is forgotten, also when no operation that
// waits for all follows.
func TestLateMismatch(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	for rank, err := range each(engines, func(e *Engine) error {
		root := 0
		if e.rank == 0 {
			root = 1 // so no rank is a root
		}
		err := e.Run(t.Context(), &collective.Request{
			Kind: collective.Reduce, Tag: 1, Root: root, DType: tensor.Int32,
			Out: make([]byte, 4),
		})
		for tag := uint32(2); tag < 3*window && err == nil; tag++ {
			err = runRooted(t.Context(), e, collective.Broadcast, tag, 0, 4)
		}
		return err
	}) {
		if !errors.Is(err, cohort.Mismatch) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
