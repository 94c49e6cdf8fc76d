// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
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

// matched calls of a link in a test: what an agent does, in its simplest form.
type matcher struct {
	mu    sync.Mutex
	calls map[uint64]chan *Frame
}

var matchers sync.Map // *Link to *matcher

func matcherOf(l *Link) *matcher {
	m, _ := matchers.LoadOrStore(l, &matcher{calls: map[uint64]chan *Frame{}})
	return m.(*matcher) //nolint:errcheck,forcetypeassert // only matchers are stored
}

// matching passes answers to those who wait in call, and everything else to onFrame.
func matching(onFrame func(*Link, *Frame)) func(*Link, *Frame) {
	return func(l *Link, f *Frame) {
		if f.Type.IsResponse() {
			m := matcherOf(l)
			m.mu.Lock()
			ch := m.calls[f.ID]
			delete(m.calls, f.ID)
			m.mu.Unlock()
			if ch != nil {
				ch <- f
				return
			}
		}
		onFrame(l, f)
	}
}

var ids atomic.Uint64

// call sends a request and waits for its answer.
func call(ctx context.Context, l *Link, f *Frame) (*Frame, error) {
	f.ID = ids.Add(1)
	ch := make(chan *Frame, 1)
	m := matcherOf(l)
	m.mu.Lock()
	m.calls[f.ID] = ch
	m.mu.Unlock()
	if err := l.Send(ctx, f); err != nil {
		return nil, err
	}
	select {
	case answer := <-ch:
		return answer, nil
	case <-l.Done():
		return nil, l.Err()
	case <-ctx.Done():
		return nil, cohort.FromContext(ctx, "call")
	}
}

// opening is what a side says first: its hello, and a proof of nothing.
func (id Identity) opening() []byte {
	hello := id.frame(nonce{})
	b := append(hello.AppendHead(nil), hello.Payload...)
	return (&Frame{Type: proofFrame}).AppendHead(b)
}
