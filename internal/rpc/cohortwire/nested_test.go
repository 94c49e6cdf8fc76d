// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"testing"
	"time"
)

// TestWhoWrites: many calls under way are written together, unless they turn out to be written one by one.
func TestWhoWrites(t *testing.T) {
	var q queue
	if !q.writesDirectly(maxDirectInFlight) || q.writesDirectly(maxDirectInFlight+1) {
		t.Fatal("few calls are written by their callers, many by the flusher")
	}
	for range maxSingles {
		if q.writesDirectly(9) {
			t.Fatal("a caller writes before the flusher has been alone for long enough")
		}
		q.noteFlush(1)
	}
	for i := range directFrames {
		if !q.writesDirectly(9) {
			t.Fatalf("frame %d is left to the flusher", i)
		}
	}
	if q.writesDirectly(9) {
		t.Fatal("it is never tried again")
	}
	for range 10 * maxSingles {
		q.noteFlush(1)
		q.noteFlush(2)
	}
	if q.writesDirectly(9) {
		t.Fatal("frames that come together are written one by one")
	}
}

// TestReadersAreUsedAgain: a goroutine whose turn has ended waits for its next one.
func TestReadersAreUsedAgain(t *testing.T) {
	got := make(chan uint64)
	x, y := pair(t, Config{OnFrame: ignore}, Config{OnFrame: func(l *Link, f *Frame) {
		l.Handover(l.Turn())
		got <- f.ID
	}})
	for i := range uint64(200) {
		if err := x.Send(within(t), &Frame{Type: FirstAgentType, ID: i}); err != nil {
			t.Fatal(err)
		}
		select {
		case id := <-got:
			if id != i {
				t.Fatalf("frame %d, want %d", id, i)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("frame %d does not come", i)
		}
	}
	for end := time.Now().Add(20 * time.Second); y.spares.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no goroutine waits for its next turn")
		}
	}
	if n := y.spares.Load(); n > spareReaders {
		t.Errorf("%d goroutines wait", n)
	}
}
