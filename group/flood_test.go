// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// flood sends a rank more than it takes without receiving: rings and windows are full.
func flood(ctx context.Context, g *Group, to cohort.Rank) (works []*Work) {
	for range floodMessages {
		works = append(works, g.Send(ctx, from(make([]byte, floodSize)...), to, 5))
	}
	return works
}

const floodMessages, floodSize = 3000, 8 << 10

// TestSlowReceiverIsNotBlamed: a rank that receives nothing for two heartbeats, while all buffers towards it are full, is alive. No rank is
// blamed, and nothing is lost when it goes on.
func TestSlowReceiverIsNotBlamed(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			const beat = 2 * time.Second
			groups := newWorld(t, 2, WithTransport(transport), WithHeartbeat(beat), WithQueue(2*floodMessages))
			ctx := ctxOf(t)
			sends := flood(ctx, groups[0], 1)
			last := sends[len(sends)-1]
			short, cancel := context.WithTimeout(ctx, 2*beat)
			defer cancel()
			if err := last.Wait(short); !errors.Is(err, context.DeadlineExceeded) || last.Completed() {
				t.Fatalf("the last message: %v", err)
			}
			for r, g := range groups {
				if g.Err() != nil || g.formed.Failure.Lossy() {
					t.Fatalf("rank %d: %v", r, g.Err())
				}
			}
			room := from(make([]byte, floodSize)...)
			for range sends {
				must(t, groups[1].Recv(ctx, room, 0, 5).Wait(ctx))
			}
			must(t, WaitAll(ctx, sends...))
		})
	}
}
