// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"testing"
)

// BenchmarkOverhead is what the group adds to an operation: a group of one rank has nothing else to do.
func BenchmarkOverhead(b *testing.B) {
	g := newWorld(b, 1)[0]
	ctx := context.Background()
	x := from(make([]float32, 1)...)
	w := g.Barrier(ctx)
	if err := w.Wait(ctx); err != nil {
		b.Fatal(err)
	}
	reuse := []OpOption{Reuse(w)}
	b.ReportAllocs()
	for b.Loop() {
		if err := g.AllReduce(ctx, x, Sum, reuse...).Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
