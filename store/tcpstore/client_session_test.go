// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestSessionAck: the acknowledgement is the smallest number whose answer has not come, in whatever order answers come and connections
// break. Those that the server keeps for themselves do not hold it up.
func TestSessionAck(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	s := newSession()
	var waiting, open []uint64 // without an answer
	for range 50_000 {
		switch r.IntN(8) {
		case 0, 1, 2, 3:
			if s.last+1-s.ack >= wire.SessionWindow-1 {
				continue
			}
			if s.last++; r.IntN(5) == 0 && len(open) < 100 {
				open = append(open, s.last)
				s.settle(s.last)
			} else {
				waiting = append(waiting, s.last)
			}
		case 7:
			if r.IntN(50) > 0 {
				continue
			}
			waiting = slices.DeleteFunc(waiting, func(uint64) bool { return r.IntN(10) == 0 }) // given up meanwhile
			var lost []lostCall
			for _, seq := range waiting {
				lost = append(lost, lostCall{seq: seq})
			}
			for _, seq := range open {
				lost = append(lost, lostCall{seq: seq, open: true})
			}
			slices.SortFunc(lost, func(a, b lostCall) int { return int(a.seq) - int(b.seq) })
			s.begin(lost)
			for _, seq := range open {
				s.settle(seq)
			}
		default:
			if n := len(waiting); n > 0 {
				i := r.IntN(min(n, 1+r.IntN(3000)))
				s.settle(waiting[i])
				waiting = slices.Delete(waiting, i, i+1)
			}
		}
		want := s.last + 1
		if len(waiting) > 0 {
			want = waiting[0]
		}
		if s.ack != want {
			t.Fatalf("the acknowledgement is %d, want %d of %d", s.ack, want, s.last)
		}
	}
	if s.last < 3*wire.SessionWindow {
		t.Errorf("only %d numbers were given", s.last)
	}
}

// TestCutBeforeARequestIsSent: the connection breaks after a call has chosen it, and before its request is behind the output. It goes on
// over the next one.
func TestCutBeforeARequestIsSent(t *testing.T) {
	t.Parallel()
	c := dialTest(t, startServer(t))
	native, is := c.back.(*nativeStore)
	if !is {
		t.Fatalf("the client has a %T", c.back)
	}
	for range 5 {
		m := native.current.Load()
		m.mu.Lock()
		set := make(chan error, 1)
		go func() { set <- c.Set(t.Context(), "k", []byte("v")) }()
		time.Sleep(20 * time.Millisecond) // it waits for the lock then
		m.failLocked(io.ErrUnexpectedEOF)
		m.mu.Unlock()
		if err := <-set; err != nil {
			t.Error(err)
		}
	}
}
