// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
)

// TestBadFramesCostNoGoroutines sends requests that cannot be read to a worker and does not read the answers: their number
// does not show in its goroutines, and in the end it cuts the peer.
func TestBadFramesCostNoGoroutines(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry { return NewRegistry().MustHandle("bad.echo", func(n int) int { return n }) })
	ctx := testContext(t)
	if v, err := Call[int](ctx, agents[0], "w1", "bad.echo", 1); err != nil || v != 1 {
		t.Fatal(v, err)
	}
	p, err := agents[0].net.Peer("w1")
	if err != nil {
		t.Fatal(err)
	}
	link := p.Current().Link
	before, most := runtime.NumGoroutine(), 0
	for i := range 20_000 {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = link.Send(bounded, &cohortwire.Frame{Type: 0x102, ID: uint64(1_000_000 + i), Payload: []byte{1}})
		cancel()
		if err != nil {
			break // cut
		}
		if i%100 == 0 {
			most = max(most, runtime.NumGoroutine())
		}
	}
	if most > before+50 {
		t.Errorf("%d goroutines, %d before", most, before)
	}
	v, err := Call[int](ctx, agents[0], "w1", "bad.echo", 2)
	if cohort.CodeOf(err) == cohort.PeerLost { // the link was cut after the last frame: the next call makes another
		v, err = Call[int](ctx, agents[0], "w1", "bad.echo", 2)
	}
	if err != nil || v != 2 {
		t.Fatalf("afterwards: %d, %v", v, err)
	}
}
