// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// TestChangingHeader: rank 0 changes the header while another rank reads it. That rank takes a layout that fits the file, or none.
func TestChangingHeader(t *testing.T) {
	t.Parallel()
	c := Config{Size: 2, Exchange: newBoard(), Slot: 4 << 10, Area: 16 << 10, Arena: 64 << 10}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	f, seg, err := createSegment(&c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	defer seg.unmap()
	var changing sync.WaitGroup
	stop := make(chan struct{})
	changing.Go(func() {
		slot := &seg.header().slot
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default: // so much more that 2^64 is added to the size of all slots, and the sum is the same
				atomic.StoreUint64(slot, uint64(seg.slot)+i%2*(1<<64/2/sets))
			}
		}
	})
	defer changing.Wait()
	defer close(stop)
	for range 20_000 {
		other, err := openSegment(f, c.Size)
		if err != nil {
			continue
		}
		got := other.layout
		other.unmap()
		if got != seg.layout {
			t.Fatalf("got %+v, want %+v", got, seg.layout)
		}
	}
}

// TestBrokenRingEndsTheGroup: a rank that finds in a ring what no rank of ours writes ends the group, also for the ranks that wait for
// something else.
func TestBrokenRingEndsTheGroup(t *testing.T) {
	t.Parallel()
	frames := func(kind uint32, n int) func(*segment) {
		return func(s *segment) {
			r := s.ringOf(1, 0)
			end := time.Now().Add(20 * time.Second)
			for i := 0; i < n && time.Now().Before(end); r.Publish() {
				for ; i < n && r.Put(shmring.Frame{Kind: kind, Slot: 5}, nil); i++ {
				}
			}
		}
	}
	for name, write := range map[string]func(*segment){
		"position": func(s *segment) {
			atomic.StoreUint64(at[uint64](s, s.ringsAt+s.ranks*(shmring.ControlSize+s.ring)), 7) // no frame ends there
		},
		"kind":   frames(99, 1),
		"eager":  frames(shmring.Eager, shmring.WindowMessages+1),
		"offers": frames(shmring.Offer, maxOffers+1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := world(t, 4, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var writing sync.WaitGroup
			writing.Go(func() { write(engines[1].seg) })
			defer writing.Wait()
			receive := func(e *Engine, from int) error {
				op := &transport.Op{Peer: from, Slot: 1, Buf: make([]byte, 1)}
				e.mesh.Recv(op)
				return e.mesh.Wait(ctx, op)
			}
			errs := each(engines[:3], func(e *Engine) error {
				switch e.rank {
				case 0:
					return receive(e, 1)
				case 1:
					return receive(e, 3)
				}
				return e.Run(ctx, &collective.Request{Kind: collective.Barrier})
			})
			for rank, err := range errs {
				if !errors.Is(err, cohort.Protocol) || !strings.Contains(err.Error(), "rank 1") {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			if err := engines[0].Run(ctx, &collective.Request{Kind: collective.Barrier}); !errors.Is(err, cohort.Protocol) {
				t.Errorf("a later collective: %v", err)
			}
		})
	}
}
