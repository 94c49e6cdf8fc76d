// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"testing"
	"time"
)

// A peer that does not read holds up its own control stream, and no other. The lease is longer than the test waits: an owner that
// hears nothing would give up its object by itself.
func TestCongestedPeerHoldsUpOnlyItself(t *testing.T) {
	agents := world(t, 3, true, func(int) *Registry { return NewRegistry().MustHandle("t.make", func() int { return 7 }) }, WithLease(time.Second, time.Minute, time.Minute))
	ctx := testContext(t)
	refs := map[string]*Ref[int]{}
	for _, to := range []string{"w1", "w2"} {
		ref, err := Remote[int](ctx, agents[0], to, "t.make")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = ref.Fetch(ctx); err != nil {
			t.Fatal(err)
		}
		refs[to] = ref
	}
	p, err := agents[0].net.Peer("w1")
	if err != nil {
		t.Fatal(err)
	}
	flushing, release := agents[0].refs.Stall(p) // as if what is sent to w1 went nowhere
	_ = refs["w1"].Close()
	owned := func(i int) int { return agents[i].DebugInfo()["num_owner_rrefs"] }
	ends(t, "the flush to w1", func() {
		for !flushing() {
			time.Sleep(time.Millisecond)
		}
	})
	_ = refs["w2"].Close()
	ends(t, "the object of w2", func() {
		for owned(2) > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	if owned(1) == 0 {
		t.Error("w1 has heard of its delete")
	}
	release()
	quiet(t, agents)
	shutdown(t, agents)
}
