// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// TestAllGatherComesTooLate: a worker that comes to an all-gather after its leader has given it up is told so. There is no
// connection from the leader to it by which it could have heard of it before.
func TestAllGatherComesTooLate(t *testing.T) {
	reg := func(int) *Registry { return NewRegistry().MustHandle("math.add", func(a, b int) int { return a + b }) }
	agents := world(t, 3, false, reg, WithTransports(TransportUV))
	ctx := testContext(t)
	if _, err := Call[int](ctx, agents[0], "w2", "math.add", 1, 2); err != nil {
		t.Fatal(err)
	}
	_ = agents[2].Close()
	for _, a := range agents[:2] {
		begun := time.Now()
		_, err := AllGather(ctx, a, 1)
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Peer != "w2" {
			t.Errorf("%s: %v", a.Name(), err)
		}
		if waited := time.Since(begun); waited > 20*time.Second {
			t.Errorf("%s has waited %v", a.Name(), waited)
		}
	}
}
