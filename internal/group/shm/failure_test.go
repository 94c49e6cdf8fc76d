// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// TestMismatchIsNamedOnEveryRank lets one rank call something else; all must report which rank called what, and continue afterwards.
func TestMismatchIsNamedOnEveryRank(t *testing.T) {
	t.Parallel()
	sum := func(n int) *collective.Request {
		return &collective.Request{
			Kind: collective.AllReduce, Tag: 7, DType: tensor.Float32, Op: reduce.Sum,
			Out: bytes.Repeat([]byte{1}, n),
		}
	}
	change := func(q *collective.Request, f func(*collective.Request)) *collective.Request {
		f(q)
		return q
	}
	for name, c := range map[string]struct {
		usual, other *collective.Request
		words        []string
		own          []int // the ranks whose very call fails; without a root, all
	}{
		"operator": {
			sum(8), change(sum(8), func(q *collective.Request) { q.Op = reduce.Max }),
			[]string{"all_reduce(sum, float32, 8 bytes, tag 7)", "all_reduce(max, float32, 8 bytes, tag 7)"},
			nil,
		},
		"type":  {sum(8), change(sum(8), func(q *collective.Request) { q.DType = tensor.Int32 }), []string{"float32", "int32"}, nil},
		"size":  {sum(8), sum(12), []string{"8 bytes", "12 bytes"}, nil},
		"large": {sum(4 << 20), sum(8), []string{"4194304 bytes", "8 bytes"}, nil},
		"order": {sum(8), change(sum(8), func(q *collective.Request) { q.Tag = 8 }), []string{"tag 7", "tag 8"}, nil},
		"kind":  {sum(8), &collective.Request{Kind: collective.Barrier, Tag: 7}, []string{"all_reduce(", "barrier(tag 7)"}, nil},
		"root": {
			&collective.Request{Kind: collective.Broadcast, Tag: 1, Root: 0, DType: tensor.Uint8, Out: make([]byte, 4)},
			&collective.Request{Kind: collective.Broadcast, Tag: 1, Root: 1, DType: tensor.Uint8, Out: make([]byte, 4)},
			[]string{"root 0", "root 1"},
			[]int{2},
		},
		"no root": {
			&collective.Request{Kind: collective.Reduce, Tag: 1, Root: 2, DType: tensor.Uint8, Out: make([]byte, 4)},
			&collective.Request{Kind: collective.Reduce, Tag: 1, Root: 0, DType: tensor.Uint8, Out: make([]byte, 4)},
			[]string{"root 0", "root 2"},
			[]int{},
		},
		"counts": {
			&collective.Request{Kind: collective.ReduceScatter, DType: tensor.Uint8, In: make([]byte, 6), Out: make([]byte, 2)},
			&collective.Request{
				Kind: collective.ReduceScatter, DType: tensor.Uint8, In: make([]byte, 6), Out: make([]byte, 2),
				InCounts: []int{3, 1, 2},
			},
			[]string{"reduce_scatter(sum, uint8, 6 bytes, tag 0)", "uneven counts"},
			nil,
		},
		"gather": {
			&collective.Request{Kind: collective.Gather, Root: 0, DType: tensor.Uint8, In: make([]byte, 4), Out: make([]byte, 12)},
			&collective.Request{Kind: collective.Gather, Root: 0, DType: tensor.Uint8, In: make([]byte, 5)},
			[]string{"rank 2 sends 5 bytes to rank 0, which expects 4"},
			[]int{0},
		},
		"scatter": {
			&collective.Request{Kind: collective.Scatter, Root: 0, DType: tensor.Uint8, In: make([]byte, 12), Out: make([]byte, 4)},
			&collective.Request{Kind: collective.Scatter, Root: 0, DType: tensor.Uint8, Out: make([]byte, 5)},
			[]string{"rank 0 sends 4 bytes to rank 2, which expects 5"},
			[]int{2},
		},
		"all to all": {
			&collective.Request{Kind: collective.AllToAll, DType: tensor.Uint8, In: make([]byte, 6), Out: make([]byte, 6)},
			&collective.Request{
				Kind: collective.AllToAll, DType: tensor.Uint8, In: make([]byte, 6), Out: make([]byte, 6),
				InCounts: []int{1, 3, 2},
			},
			[]string{"rank 2 sends 1 bytes to rank 0, which expects 2"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := world(t, 3, nil)
			errs := each(engines, func(e *Engine) error {
				q := *c.usual
				if e.rank == 2 {
					q = *c.other
				}
				q.Out = bytes.Clone(q.Out)
				before := bytes.Clone(q.Out)
				err := e.Run(context.Background(), &q)
				if err == nil && c.own != nil && !slices.Contains(c.own, e.rank) { // this rank had no need to see it
					return e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: 9, Timeout: 10 * time.Second})
				}
				if !bytes.Equal(before, q.Out) {
					t.Errorf("rank %d: the buffer changed before the mismatch was found", e.rank)
				}
				return err
			})
			for rank, err := range errs {
				if !errors.Is(err, cohort.Mismatch) {
					t.Fatalf("rank %d: %v", rank, err)
				}
				if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Rank != cohort.NoRank {
					t.Errorf("rank %d blames one of the two: %v", rank, err)
				}
				for _, w := range append(c.words, "rank 2") {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("rank %d: %q does not contain %q", rank, err, w)
					}
				}
				if text := err.Error(); !strings.Contains(text, "rank 0") && !strings.Contains(text, "rank 1") {
					t.Errorf("rank %d: %q names one rank only", rank, err)
				}
			}
			for rank, err := range each(engines, func(e *Engine) error {
				return e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: 99, Timeout: 10 * time.Second})
			}) {
				if !errors.Is(err, cohort.Aborted) {
					t.Errorf("after the mismatch, rank %d: %v", rank, err)
				}
			}
		})
	}
}

func TestRefusedBeforeAStepIsTaken(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	for name, q := range map[string]*collective.Request{
		"root":      {Kind: collective.Broadcast, Root: 2},
		"type":      {Kind: collective.AllReduce, DType: tensor.DType(12), Out: make([]byte, 4)},
		"undefined": {Kind: collective.AllReduce, DType: tensor.Float32, Op: reduce.And, Out: make([]byte, 4)},
		"element":   {Kind: collective.AllReduce, DType: tensor.Float32, Out: make([]byte, 5)},
		"gather":    {Kind: collective.AllGather, In: make([]byte, 4), Out: make([]byte, 9)},
		"counts":    {Kind: collective.AllToAll, In: make([]byte, 4), Out: make([]byte, 4), InCounts: []int{4}},
		"sum":       {Kind: collective.AllToAll, In: make([]byte, 4), Out: make([]byte, 4), InCounts: []int{4, 1}},
		"negative":  {Kind: collective.AllGatherV, In: make([]byte, 4), Out: make([]byte, 4), OutCounts: []int{5, -1}},
		"kind":      {Kind: 77},
	} {
		err := engines[0].Run(context.Background(), q)
		if !errors.Is(err, cohort.InvalidArgument) && !errors.Is(err, cohort.NotSupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range each(engines, func(e *Engine) error {
		return e.Run(context.Background(), &collective.Request{Kind: collective.Barrier})
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestTimeoutFailsTheGroup: the rank that gives up names the rank it waited for, the late one learns that the group has failed.
func TestTimeoutFailsTheGroup(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	errs := each(engines[:2], func(e *Engine) error {
		return e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Timeout: 150 * time.Millisecond})
	})
	timeouts := 0
	for _, err := range errs {
		switch {
		case errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "waiting for ranks [2]"):
			timeouts++
		case !errors.Is(err, cohort.DeadlineExceeded):
			t.Errorf("%v", err)
		}
	}
	if timeouts == 0 {
		t.Errorf("no rank reports that it waited for rank 2: %v", errs)
	}
	if err := engines[2].Run(context.Background(), &collective.Request{Kind: collective.Barrier}); !errors.Is(err,
		cohort.DeadlineExceeded) || !strings.Contains(err.Error(), "gave up") {
		t.Errorf("the late rank: %v", err)
	}
	if err := engines[0].Run(context.Background(), &collective.Request{Kind: collective.Barrier}); !errors.Is(err, cohort.Aborted) {
		t.Errorf("a failed group: %v", err)
	}
}

// TestContextInterrupts: the end of a context leaves the operation where it is.
func TestContextInterrupts(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("enough")) })
	start := time.Now()
	q := &collective.Request{Kind: collective.Barrier}
	err := engines[0].Run(ctx, q)
	if !errors.Is(err, context.Canceled) || !errors.As(err, new(*collective.Interrupted)) ||
		!strings.Contains(err.Error(), "enough (waiting for ranks [1])") {
		t.Errorf("%v", err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("the cancellation took %v", d)
	}
	if err = engines[0].Run(context.Background(), &collective.Request{Kind: collective.Barrier}); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("another request in between: %v", err)
	}
	ended, stop := context.WithCancel(context.Background())
	stop()
	if err = engines[1].Run(ended, &collective.Request{Kind: collective.Barrier}); !errors.Is(err, context.Canceled) ||
		errors.As(err, new(*collective.Interrupted)) {
		t.Errorf("a context that had ended before: %v", err)
	}
	for rank, err := range each(engines, func(e *Engine) error {
		if e.rank == 0 {
			return e.Run(context.Background(), q)
		}
		return e.Run(context.Background(), &collective.Request{Kind: collective.Barrier})
	}) {
		if err != nil {
			t.Errorf("rank %d goes on: %v", rank, err)
		}
	}
}

// TestFail ends a collective and a message of this rank, and the collective of the other.
func TestFail(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	cause := errors.New("the user gave up")
	recv := &transport.Op{Peer: 1, Buf: make([]byte, 1)}
	engines[0].mesh.Recv(recv)
	time.AfterFunc(30*time.Millisecond, func() { engines[0].mesh.Fail(cause) })
	errs := each(engines[:2], func(e *Engine) error {
		return e.Run(context.Background(), &collective.Request{Kind: collective.Barrier})
	})
	if !errors.Is(errs[0], cause) {
		t.Errorf("rank 0: %v", errs[0])
	}
	if !errors.Is(errs[1], cohort.Aborted) || !strings.Contains(errs[1].Error(),
		"rank 0: it gave up: shm: fail: aborted: the user gave up") {
		t.Errorf("rank 1: %v", errs[1])
	}
	if err := engines[0].mesh.Wait(context.Background(), recv); !errors.Is(err, cause) {
		t.Errorf("the message: %v", err)
	}
	if err := engines[0].Run(context.Background(), &collective.Request{Kind: collective.Barrier}); !errors.Is(err, cause) {
		t.Errorf("later: %v", err)
	}
}

func TestCloseEndsAnOperation(t *testing.T) {
	t.Parallel()
	engines := world(t, 2, nil)
	done := make(chan error, 1)
	go func() { done <- engines[0].Run(context.Background(), &collective.Request{Kind: collective.Barrier}) }()
	time.Sleep(30 * time.Millisecond)
	if err := engines[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, cohort.Closed) {
		t.Errorf("the operation: %v", err)
	}
	if err := engines[0].Run(context.Background(), &collective.Request{Kind: collective.Barrier}); !errors.Is(err, cohort.Closed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := engines[0].Alloc(8); !errors.Is(err, cohort.Closed) {
		t.Errorf("alloc after Close: %v", err)
	}
	if err := engines[0].Close(); err != nil {
		t.Error(err)
	}
	err := engines[1].Run(context.Background(), &collective.Request{Kind: collective.Barrier})
	if !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "rank 0") {
		t.Errorf("the other rank: %v", err)
	}
}

func TestAlloc(t *testing.T) {
	t.Parallel()
	e := world(t, 1, func(c *Config) { c.Arena = 64 << 10 })[0]
	a, err := e.Alloc(40 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Alloc(40 << 10); !errors.Is(err, cohort.Exhausted) {
		t.Errorf("a full arena: %v", err)
	}
	if _, err = e.Alloc(1 << 20); !errors.Is(err, cohort.Exhausted) {
		t.Errorf("more than the arena: %v", err)
	}
	if _, err = e.Alloc(-1); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("less than nothing: %v", err)
	}
	x, err := tensor.FromStorage(a, tensor.Float32, []int{10 << 10}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Fill(1); err != nil {
		t.Fatal(err)
	}
	var parts []*tensor.Storage
	for range 8 {
		s, err := e.Alloc(1000)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, s)
	}
	for _, i := range []int{3, 1, 0, 2, 7, 5, 6, 4} {
		parts[i].Release()
	}
	_ = e.Close()
	if v, err := x.At(5); err != nil || v != float32(1) { // still mapped
		t.Errorf("after Close: %v %v", v, err)
	}
	a.Release()
	if len(e.arena.mu.free) != 1 || e.arena.mu.free[0] != (span{0, 64 << 10}) || e.arena.mu.seg != nil {
		t.Errorf("free list %v, mapped %v", e.arena.mu.free, e.arena.mu.seg != nil)
	}
}

// TestHotPathAllocatesNothing counts allocations of operations after warm-up.
func TestHotPathAllocatesNothing(t *testing.T) {
	engines := world(t, 2, nil)
	stop := make(chan struct{})
	other := make(chan error, 1)
	ctx := context.Background()
	requests := func() []*collective.Request {
		buf := func(n int) []byte { return make([]byte, n) }
		return []*collective.Request{
			{Kind: collective.Barrier},
			{Kind: collective.AllReduce, DType: tensor.Float32, Out: buf(4)},
			{Kind: collective.AllReduce, DType: tensor.Float32, Out: buf(1 << 20)},
			{Kind: collective.AllReduce, DType: tensor.Float32, Op: reduce.Avg, Out: buf(1 << 10)},
			{Kind: collective.Broadcast, DType: tensor.Float32, Out: buf(1 << 20)},
			{Kind: collective.AllGather, DType: tensor.Float32, In: buf(1 << 10), Out: buf(2 << 10)},
			{Kind: collective.ReduceScatter, DType: tensor.Float32, In: buf(1 << 20), Out: buf(1 << 19)},
			{Kind: collective.AllToAll, DType: tensor.Float32, In: buf(1 << 10), Out: buf(1 << 10)},
		}
	}
	all := func(e *Engine, qs []*collective.Request) error {
		for _, q := range qs {
			q.Timeout = time.Minute
			if err := e.Run(ctx, q); err != nil {
				return err
			}
		}
		return nil
	}
	go func() {
		qs := requests()
		for {
			select {
			case <-stop:
				other <- nil
				return
			default:
			}
			if err := all(engines[1], qs); err != nil {
				other <- err
				return
			}
		}
	}()
	qs := requests()
	allocations := testing.AllocsPerRun(50, func() {
		if err := all(engines[0], qs); err != nil {
			t.Error(err)
		}
	})
	close(stop)
	// The other rank may have begun another turn: join it once more, or let it fail with this rank's leaving.
	_ = engines[0].Close()
	<-other
	if allocations > 0 {
		t.Errorf("%v allocations per turn of %d operations", allocations, len(qs))
	}
}

// TestLossFoundInAnOperationThatEndsWell: a rank finds another's word of its end while it waits, and then that what it waits
// for has happened. The operation ends well, and the next one names the rank that is lost.
func TestLossFoundInAnOperationThatEndsWell(t *testing.T) {
	t.Parallel()
	engines := world(t, 3, nil)
	_ = engines[1].giveUp(cohort.New("shm: barrier", cohort.Closed, "the engine was closed during the operation"))
	if err := engines[0].reasonToStop(t.Context(), time.Now()); !errors.Is(err, cohort.PeerLost) { // what waitLong may ignore
		t.Fatal(err)
	}
	err := engines[0].Run(t.Context(), &collective.Request{Kind: collective.Barrier})
	if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Rank != 1 {
		t.Errorf("the next operation: %v", err)
	}
}
