// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
)

func TestOpIsReusable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var op Op
		for round := range 3 {
			op.Begin()
			if op.Completed() {
				t.Fatalf("round %d: complete before its completion", round)
			}
			want := errors.New("reason")
			go op.Complete(want)
			// Whether or not a goroutine waits, the next round must start clean.
			if round != 1 {
				if err := op.Await(t.Context()); !errors.Is(err, want) {
					t.Fatalf("round %d: %v", round, err)
				}
				if err := op.Await(t.Context()); !errors.Is(err, want) {
					t.Fatalf("round %d, second wait: %v", round, err)
				}
			}
			synctest.Wait()
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var op Op
		op.Begin()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := op.Await(ctx); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatal(err)
		}
		op.Complete(nil)
		if err := op.Await(ctx); err != nil {
			t.Fatalf("a complete op must win over an ended context: %v", err)
		}
	})
}

func TestSetEndsEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set Set
		for range 3 { // sets are reused
			set.Reset()
			a, b := Op{Set: &set}, Op{Set: &set}
			a.Begin()
			b.Begin()
			done := make(chan error)
			go func() { done <- a.Await(t.Context()) }()
			synctest.Wait()
			reason := errors.New("reason")
			b.Complete(reason)
			if err := <-done; !errors.Is(err, reason) || a.Completed() {
				t.Fatalf("%v, complete %v", err, a.Completed())
			}
			a.Complete(nil)
			if err := a.Await(t.Context()); err != nil {
				t.Fatalf("an op that is complete has its own result: %v", err)
			}
		}
	})
}

// TestDivide: the parts of a message are all of it, in order, and it is complete with the last of them, whichever that is.
func TestDivide(t *testing.T) {
	op := &Op{Peer: 3, Slot: 9}
	for _, length := range []int{0, 1, 63, 64, 65, 1000, 1 << 20, 1<<20 + 1} {
		for n := 2; n <= 8; n++ {
			op.Buf = make([]byte, length)
			parts := op.Divide(n)
			for i := range op.Buf {
				op.Buf[i] = byte(i * 7)
			}
			var joined []byte
			for i := range parts {
				parts[i].Begin()
				if parts[i].Peer != 3 || parts[i].Slot != 9 || parts[i].Length() != length || len(parts[i].Buf) > length/n+n*partAlign {
					t.Errorf("part %d of %d of %d bytes: peer %d, slot %d, %d bytes", i, n, length, parts[i].Peer, parts[i].Slot,
						len(parts[i].Buf))
				}
				joined = append(joined, parts[i].Buf...)
			}
			if len(parts) != n || !bytes.Equal(joined, op.Buf) || !op.Divided() {
				t.Errorf("%d parts of %d bytes are not the message", n, length)
			}
			var wg sync.WaitGroup
			for i := range parts {
				if op.Completed() {
					t.Errorf("%d parts: complete too early", n)
				}
				wg.Go(func() {
					parts[i].N = len(parts[i].Buf)
					parts[i].Complete(nil)
				})
				if i%2 == 0 {
					wg.Wait()
				}
			}
			if err := op.Await(t.Context()); err != nil || op.N != length {
				t.Errorf("%d parts: %d of %d bytes, %v", n, op.N, length, err)
			}
			wg.Wait()
			op.Release()
		}
	}
	op.Begin()
	if op.Divided() || op.Length() != len(op.Buf) {
		t.Error("an op that is used again is still divided")
	}
}

// TestDivideFails: the error of a message is that of its first part that failed, and memory is used again.
func TestDivideFails(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	var set Set
	set.Reset()
	op := &Op{Buf: make([]byte, 300), Set: &set}
	parts := op.Divide(3)
	for i := range parts {
		parts[i].Begin()
	}
	parts[2].Complete(second)
	parts[0].Complete(nil)
	if op.Completed() || set.Err() != nil {
		t.Error("complete before its last part")
	}
	parts[1].Complete(first)
	if err := op.Await(t.Context()); !errors.Is(err, first) || !errors.Is(set.Err(), first) {
		t.Errorf("%v, set %v", err, set.Err())
	}
	if allocs := testing.AllocsPerRun(10, func() {
		for i := range op.Divide(3) {
			parts[i].Begin()
			parts[i].Complete(nil)
		}
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}
