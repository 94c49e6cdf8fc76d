// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package group

import (
	"testing"
	"time"
)

// TestSlowNetworkUsesNoCore: where the network is slow, the pieces of a large message come hundreds of microseconds
// apart. A rank that spun until each of them was there used most of a core, and so did each lane's goroutine. What the
// operation takes where the network is not slow does not count. Under the race detector each look at a socket takes
// several times as long, and that is what would be measured.
func TestSlowNetworkUsesNoCore(t *testing.T) {
	spec := costSpec{Transport: TCP, Bytes: 8 << 20, Wall: 500 * time.Millisecond}
	fast := costs(t, spec, 2)
	spec.Rate = 100 << 20
	for rank, r := range costs(t, spec, 2) {
		work := fast[rank].CPU.Seconds() / float64(fast[rank].Operations) * float64(r.Operations)
		cores := (r.CPU.Seconds() - work) / r.Wall.Seconds()
		t.Logf("rank %d: %.3f cores in all, %.3f for waiting", rank, r.CPU.Seconds()/r.Wall.Seconds(), cores)
		if cores > 0.45 {
			t.Errorf("rank %d uses %.3f cores for waiting", rank, cores)
		}
	}
}
